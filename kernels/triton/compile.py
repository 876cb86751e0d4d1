"""Compiling a Launch for a GPU that is not there, and reading what came out.

Owns: signatures of launches, the report on a compiled kernel. Must not know: which kernels there
are (specs.py), what is good enough (the tests).
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import tempfile
from dataclasses import dataclass

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from radixserve.kernels.triton.launch import Launch

_TYPES = {
    torch.bool: "i1",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.float8_e4m3fn: "fp8e4nv",
}
# Ampere and Hopper's mma, Hopper's wgmma, Blackwell's tcgen05, as disassembled.
_TENSOR_CORES = re.compile(r"\b(HMMA|QMMA|HGMMA|QGMMA|UTCHMMA|UTCQMMA)\b")
_ALIGNED = 16
SHARED_LIMITS = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""Bytes of shared memory that a program may have on each architecture."""


@dataclass(frozen=True, slots=True)
class Report:
    """registers: of a thread. stack: bytes of a thread in memory, which is spilled registers.

    shared: bytes of a program. has_tensor_cores: some instruction is theirs.
    """

    registers: int
    stack: int
    shared: int
    has_tensor_cores: bool


def signature_of(launch: Launch) -> ASTSource:
    """The launch as Triton's compiler takes it, with the types and hints of a real one."""
    signature: dict[str, str] = {}
    constants: dict[str, object] = {}
    attributes: dict[tuple[int], list[list[object]]] = {}
    for place, parameter in enumerate(launch.kernel.params):
        name = parameter.name
        value = launch.constants[name] if parameter.is_constexpr else launch.arguments[name]
        if parameter.is_constexpr or value is None:
            signature[name], constants[name] = "constexpr", value
            continue
        is_aligned = False
        if isinstance(value, torch.Tensor):
            signature[name] = f"*{_TYPES[value.dtype]}"
            is_aligned = not parameter.do_not_specialize_on_alignment
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            signature[name] = "i32"
            is_aligned = value % _ALIGNED == 0 and not parameter.do_not_specialize
        if is_aligned:
            attributes[place,] = [["tt.divisibility", _ALIGNED]]
    return ASTSource(launch.kernel, signature, constants, attributes)


def compile_launch(launch: Launch, arch: int) -> Report:
    """Compile for an architecture (80, 90, 100); Triton's cache keeps what it compiled before."""
    target = GPUTarget("cuda", arch, 32)
    options = {"num_warps": launch.warps, "num_stages": launch.stages}
    compiled = triton.compile(signature_of(launch), target=target, options=options)
    with tempfile.TemporaryDirectory() as folder:
        cubin = pathlib.Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        usage = _cuobjdump("--dump-resource-usage", cubin)
        code = _cuobjdump("--dump-sass", cubin)
    found = dict(re.findall(r"\b(REG|STACK):(\d+)", usage))
    return Report(
        registers=int(found["REG"]),
        stack=int(found["STACK"]),
        shared=int(compiled.metadata.shared),
        has_tensor_cores=bool(_TENSOR_CORES.search(code)),
    )


def _cuobjdump(flag: str, cubin: pathlib.Path) -> str:
    tool = triton.knobs.nvidia.cuobjdump.path
    return subprocess.run([tool, flag, cubin], capture_output=True, text=True, check=True).stdout
