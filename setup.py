"""What is compiled when the package is built; everything else is in pyproject.toml. Both are
optional: without them the build goes on and says so.

Owns: how kernels/cpu/src becomes radixserve/kernels/cpu/libradixserve_cpu.so, a plain shared
library that ctypes loads. Each instruction set is a source of its own with flags of its own; what
the compiler does not know is compiled to an empty path. Without a compiler (or with one that lacks
the vector builtins: GCC before 12) the runtime uses torch.

And how radixserve/cache is compiled by mypyc, from the sources that run as Python elsewhere; they
stay in the package beside what was made of them. Only in a wheel: in an editable install, and with
`build_ext --inplace`, the sources are what runs. RADIXSERVE_COMPILE=1 lets pip bring mypyc for the
build (build_backend.py) and makes a failure one of the build, 0 leaves it out; else it is used
where it is found.
"""

from __future__ import annotations

import os
import pathlib
import platform
import shutil

from setuptools import Distribution, Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CompileError

CHOICE = os.environ.get("RADIXSERVE_COMPILE", "")
TREE = pathlib.Path("radixserve/cache")

SOURCES = pathlib.Path("radixserve/kernels/cpu/src")
FLAGS = [
    "-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-ffp-contract=fast",
    "-g0", "-Wall", "-Wextra",
]  # fmt: skip
ISA_FLAGS = {
    "isa_avx512.cpp": [
        "-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16",
    ],
    "isa_avx2.cpp": ["-mavx2", "-mfma"],
}  # fmt: skip


class BuildLibrary(build_ext):
    """Compiles each source with its own flags and gives the library a name without a Python tag."""

    def run(self) -> None:
        super().run()
        if CHOICE == "0" or self.inplace or self.editable_mode:
            return
        try:
            compile_tree(pathlib.Path(self.build_lib), pathlib.Path(self.build_temp))
        except (ImportError, BaseError, SystemExit) as error:
            if CHOICE == "1":
                raise
            print(f"{TREE} is not compiled and runs as Python: {error}")

    def get_ext_filename(self, fullname: str) -> str:
        return str(pathlib.Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: Extension) -> None:
        # A library of an earlier build must not pass for this one.
        pathlib.Path(self.get_ext_fullpath(ext.name)).unlink(missing_ok=True)
        objects = []
        for source in ext.sources:
            objects += self._compile(source)
        self.compiler.link_shared_object(
            objects, self.get_ext_fullpath(ext.name), target_lang="c++",
            extra_postargs=["-pthread"],
        )  # fmt: skip

    def _compile(self, source: str) -> list[str]:
        is_x86 = platform.machine().lower() in {"x86_64", "amd64"}
        isa = ISA_FLAGS.get(pathlib.Path(source).name, []) if is_x86 else []
        for flags in ([*FLAGS, *isa], FLAGS) if isa else (FLAGS,):
            try:
                return self.compiler.compile(
                    [source], output_dir=self.build_temp, extra_postargs=flags
                )
            except CompileError:
                if flags is FLAGS:
                    raise
                print(f"{source}: the compiler has no {' '.join(isa)}, the path is left out")
        raise AssertionError("a compilation returns or raises")


def compile_tree(build_lib: pathlib.Path, build_temp: pathlib.Path) -> None:
    """Put the compiled modules beside their sources in build_lib: all of them, or none.

    Raises ImportError without mypyc, SystemExit for what it cannot compile, BaseError for what the
    C compiler cannot.
    """
    from mypyc.build import mypycify

    command = build_ext(Distribution({"name": "tree"}))
    made = build_temp.absolute() / "tree"
    shutil.rmtree(made, ignore_errors=True)
    command.build_lib, command.build_temp = str(made / "lib"), str(made / "objects")
    # The packages above and beside it are not looked into: their types are checked by the gate.
    options = ["--config-file=", "--follow-imports=skip", "--disable-error-code=var-annotated"]
    command.distribution.ext_modules = mypycify(
        [*options, *sorted(str(path) for path in TREE.glob("[!_]*.py"))],
        group_name="radixserve.cache.compiled",
        target_dir=str(made / "c"),
        debug_level="0",
    )
    command.ensure_finalized()
    command.run()
    shutil.copytree(made / "lib", build_lib, dirs_exist_ok=True)


setup(
    cmdclass={"build_ext": BuildLibrary},
    ext_modules=[
        Extension(
            "radixserve.kernels.cpu.libradixserve_cpu",
            sources=sorted(str(path) for path in SOURCES.glob("*.cpp")),
            depends=sorted(str(path) for path in SOURCES.glob("*.h")),
            optional=True,
        )
    ],
)
