"""Which attention backend serves a device.

Owns: the names of the backends and what "auto" means. Must not know: shapes, the KV pool.
"""

from __future__ import annotations

from typing import Protocol

import torch

from radixserve.attention.base import AttentionBackend, AttentionShape, AttentionTensors
from radixserve.attention.cpu import CpuAttention
from radixserve.attention.native import NativeAttention
from radixserve.attention.reference import ReferenceAttention
from radixserve.errors import ConfigError

Caches = list[torch.Tensor]


class Backend(Protocol):
    """Makes a backend of a model's shape and the K and V caches of all layers."""

    def __call__(
        self,
        shape: AttentionShape,
        page_size: int,
        k_cache: Caches,
        v_cache: Caches,
        tensors: AttentionTensors = ...,
    ) -> AttentionBackend: ...


def choose(name: str, device: torch.device | str) -> Backend:
    """The backend class that `name` (auto, reference, cpu, native, triton) means on `device`.

    Raises ConfigError for an unknown name, or a backend that cannot run on the device.
    """
    kind = torch.device(device).type
    match name:
        case "auto":
            return CpuAttention if kind == "cpu" else ReferenceAttention
        case "reference":
            return ReferenceAttention
        case "cpu" if kind == "cpu":
            return CpuAttention
        case "native" if kind == "cpu":
            return NativeAttention
        case "triton":
            return _triton()
        case "cpu" | "native":
            raise ConfigError(f"attention backend {name!r} needs device cpu, not {kind}")
        case _:
            raise ConfigError(
                f"unknown attention backend {name!r}: auto, reference, cpu, native or triton"
            )


def _triton() -> Backend:
    # Imported where it is asked for: Triton is not there on every platform, and slow to import.
    try:
        from radixserve.attention.triton import TritonAttention
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise ConfigError("attention backend 'triton': the package triton is missing") from error
    return TritonAttention
