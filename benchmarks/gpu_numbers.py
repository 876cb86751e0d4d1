"""How the GPU check's stages are run, and what is said of their numbers.

Owns: one stage after another with its line and its record, errors and when they are too large, the
list of stages and of wheels to carry. Must not know:
how anything is measured.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Numbers = dict[str, float]
CARRIED = (("msgspec", 220), ("safetensors", 500))
"""What a machine with torch, triton and numpy may lack, and about how many KiB its wheel has."""


def listing(stages: Mapping[str, Callable[..., Numbers]]) -> str:
    """Each stage with what it measures, and what is to be carried along."""
    lines = [f"{name:>14}  {' '.join((one.__doc__ or '').split())}" for name, one in stages.items()]
    lines += ["", "wheels to carry where the packages are missing (64 MB is the most):"]
    lines += [f"{name:>14}  about {kib} KiB" for name, kib in CARRIED]
    return "\n".join(lines)


def roofline_model(spec: Any) -> Any:
    from benchmarks import roofline

    return roofline.Model(
        layers=spec.num_layers,
        hidden=spec.hidden_size,
        inner=spec.intermediate_size,
        heads=spec.num_qo_heads,
        kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        vocab=spec.vocab_size,
    )


def error_of(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return float((got.double() - wanted).abs().max() / wanted.abs().max())


def hold(errors: Numbers, most: float) -> None:
    """Raise AssertionError naming the errors that are too large, or no numbers."""
    wrong = {name: error for name, error in errors.items() if not error <= most}
    assert not wrong, f"off by more than {most}: {wrong}"


def run(check: Any, write: Callable[[dict[str, Any]], None], only: Sequence[str]) -> bool:
    """All stages of a gpu_check.Check; whether every one passed."""
    report: dict[str, Any] = {"tiny": check.is_tiny, "torch": torch.__version__}
    if not check.is_tiny:
        report["gpu"] = torch.cuda.get_device_name()
    failed = []
    for name, stage in check.stages().items():
        if only and name not in only:
            continue
        begin = time.perf_counter()
        try:
            found = {key: float(f"{value:.4g}") for key, value in stage().items()}
        except Exception as error:
            failed.append(name)
            report[name] = {"error": f"{type(error).__name__}: {error}"}
            traceback.print_exc()
            found = {}
        else:
            report[name] = found
        took = time.perf_counter() - begin
        shown = "  ".join(f"{key} {value:g}" for key, value in found.items()) or "FAILED"
        print(f"{name:>14} {took:6.1f} s  {shown}", flush=True)
        write(report | {"failed": failed})
        if not check.is_tiny:
            torch.cuda.empty_cache()
    return not failed
