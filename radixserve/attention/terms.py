"""How each layer's scores are formed, and how K and V are kept in fp8.

Owns: windows, caps, sinks and scales by layer, put together from a shape, a model's tensors and the
type of the cache. Must not know: rows, pages, kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from radixserve.attention.base import AttentionShape, AttentionTensors
from radixserve.errors import ConfigError

FP8 = torch.float8_e4m3fn
FP8_TYPES = (FP8, torch.uint8)  # the second where a GPU has no fp8: its kernels read the bits
FP8_LARGEST = 448.0

Scales = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTerms:
    """Options of kernels.reference.attend, by its names."""

    window: int = 0
    softcap: float = 0.0
    sinks: torch.Tensor | None = None
    kv_scales: Scales | None = None


def layer_terms(
    shape: AttentionShape, tensors: AttentionTensors, cache: torch.Tensor
) -> list[LayerTerms]:
    """The terms of every layer. cache: one layer's, for its type and device.

    Raises ValueError where the shape and the tensors are not of one model.
    """
    n = shape.num_layers
    for name, got, wanted in (
        ("windows", len(shape.windows), n if shape.windows else 0),
        ("sinks", len(tensors.sinks), n if shape.has_sinks else 0),
        ("kv_scales", len(tensors.kv_scales), n if tensors.kv_scales else 0),
    ):
        if got != wanted:
            raise ValueError(f"{name} of {got} layers where {wanted} have some")
    scales: list[Scales | None] = [None] * n
    if cache.dtype in FP8_TYPES:
        one = torch.ones(shape.num_kv_heads, dtype=torch.float32, device=cache.device)
        scales = [*tensors.kv_scales] or [(one, one)] * n
    return [
        LayerTerms(
            window=shape.windows[layer] if shape.windows else 0,
            softcap=shape.softcap,
            sinks=tensors.sinks[layer].float() if tensors.sinks else None,
            kv_scales=scales[layer],
        )
        for layer in range(n)
    ]


def refuse_terms(backend: str, shape: AttentionShape, cache: torch.Tensor) -> None:
    """Raise ConfigError naming what a backend that has plain scores alone does not do."""
    asked = [
        name
        for name, is_asked in (
            ("sliding windows", any(shape.windows)),
            ("capped scores", bool(shape.softcap)),
            ("attention sinks", shape.has_sinks),
            ("--kv-dtype fp8_e4m3", cache.dtype in FP8_TYPES),
        )
        if is_asked
    ]
    if asked:
        raise ConfigError(f"--attention {backend} has no {', '.join(asked)}")


def encoded(x: torch.Tensor, cache: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """K or V as a cache keeps it: over its heads' scale and clamped to what fp8 holds, or cast.

    x: [tokens, num_kv_heads, head_dim]. scale: [num_kv_heads], None where the cache is no fp8.
    """
    if scale is not None:
        x = (x.float() / scale[:, None]).clamp(-FP8_LARGEST, FP8_LARGEST)
    return x.to(cache.dtype)


def bits(cache: torch.Tensor) -> torch.Tensor:
    """The cache as integers where torch does not move its type (fp8), itself elsewhere."""
    return cache.view(torch.uint8) if cache.dtype == FP8 else cache
