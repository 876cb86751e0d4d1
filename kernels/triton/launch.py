"""A kernel launch as a value: run it, or compile it ahead of time for a GPU that is not there.

Owns: the one way in which our kernels start. Must not know: which kernel. Entry functions build
Launches and run them; specs.py builds the same Launches on small tensors and reads their
signatures, so what is compiled ahead of time is what is launched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton

Argument = torch.Tensor | int | float | None
Constant = int | float | bool | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """kernel: a triton.jit function. arguments: its run-time parameters; None becomes a constant.

    constants: its constexpr parameters. warps, stages: of the compiler.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: dict[str, Argument]
    constants: dict[str, Constant]
    warps: int = 4
    stages: int = 1

    def run(self) -> None:
        """Start the kernel; an empty grid starts nothing."""
        if 0 in self.grid:
            return
        self.kernel[self.grid](
            **self.arguments, **self.constants, num_warps=self.warps, num_stages=self.stages
        )


def is_interpreted() -> bool:
    """True where kernels run in the interpreter, on tensors of any device."""
    return bool(triton.knobs.runtime.interpret)


def arch_of(device: torch.device) -> int:
    """The GPU's architecture as in sm_90: 90, which also stands for the interpreter's CPU."""
    if device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def power_of_2(n: int, least: int = 1) -> int:
    """The least power of two that is at least n and `least`."""
    return max(least, 1 << max(n - 1, 0).bit_length())
