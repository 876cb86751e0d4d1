"""The native CPU kernels as an optional extension; everything else is in pyproject.toml.

Owns: how kernels/cpu/src becomes radixserve/kernels/cpu/libradixserve_cpu.so, a plain shared
library that ctypes loads. Each instruction set is a source of its own with flags of its own; what
the compiler does not know is compiled to an empty path. Without a compiler (or with one that lacks
the vector builtins: GCC before 12) the build goes on and says so, and the runtime uses torch.
"""

from __future__ import annotations

import pathlib
import platform

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

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
