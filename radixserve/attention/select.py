"""Which attention backend serves a device.

Owns: the names of the backends and what "auto" means. Must not know: shapes, the KV pool.
"""

from __future__ import annotations

import torch

from radixserve.attention.cpu import CpuAttention
from radixserve.attention.native import NativeAttention
from radixserve.attention.reference import ReferenceAttention
from radixserve.errors import ConfigError

Backend = type[CpuAttention] | type[NativeAttention] | type[ReferenceAttention]


def choose(name: str, device: torch.device | str) -> Backend:
    """The backend class that `name` (auto, reference, cpu, native) means on `device`.

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
        case "cpu" | "native":
            raise ConfigError(f"attention backend {name!r} needs device cpu, not {kind}")
        case _:
            raise ConfigError(f"unknown attention backend {name!r}: auto, reference, cpu or native")
