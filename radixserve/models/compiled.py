"""The two sides of a layer's attention through torch.compile.

Owns: what is compiled, and that it is compiled once for all layers. Must not know: attention,
requests, which compiler torch takes.

A function takes the weights as arguments, so that layers of one shape share what was compiled; the
number of tokens is marked dynamic, but for one token, which torch compiles for itself. Attention,
rotary positions, the embedding and the head run as without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from radixserve.layers.linear import Linear
from radixserve.layers.operations import TORCH_LAYERS, LayerOperations
from radixserve.models.decoder import DecoderLayer

BACKEND = "inductor"
Weight = torch.Tensor
Bias = torch.Tensor | None
Pair = tuple[torch.Tensor, torch.Tensor]


def _enter(
    delta: torch.Tensor | None,
    hidden: torch.Tensor,
    norm: Weight,
    eps: float,
    qkv: tuple[Weight, Bias],
) -> Pair:
    total = hidden if delta is None else hidden + delta
    return F.linear(TORCH_LAYERS.rms_norm(total, norm, eps), *qkv), total


def _leave(
    attended: torch.Tensor,
    hidden: torch.Tensor,
    norm: tuple[Weight, float],
    output: tuple[Weight, Bias],
    gate_up: tuple[Weight, Bias],
    down: tuple[Weight, Bias],
    is_gelu: bool,
) -> Pair:
    added = F.linear(attended, *output)
    normed, total = TORCH_LAYERS.add_rms_norm(added, hidden, *norm)
    gated = TORCH_LAYERS.gelu_mul if is_gelu else TORCH_LAYERS.silu_mul
    return F.linear(gated(F.linear(normed, *gate_up)), *down), total


class CompiledParts:
    """LayerParts whose operations torch fuses; the kernels of LayerOperations are not asked."""

    def __init__(self, backend: str | Callable[..., Any] | None = None) -> None:
        """backend: of torch.compile, BACKEND where None. Nothing is compiled before the first step.

        Steps of one token and of more are compiled apart: warm up with both.
        """
        backend = backend or BACKEND
        self._enter: Callable[..., Pair] = torch.compile(_enter, backend=backend)
        self._leave: Callable[..., Pair] = torch.compile(_leave, backend=backend)

    def enter(
        self,
        layer: DecoderLayer,
        delta: torch.Tensor | None,
        hidden: torch.Tensor,
        _: LayerOperations,
    ) -> Pair:
        for tensor in (delta, hidden):
            _mark(tensor)
        norm = layer.input_norm
        return self._enter(delta, hidden, norm.weight, norm.eps, _of(layer.attention.qkv))

    def leave(
        self,
        layer: DecoderLayer,
        attended: torch.Tensor,
        hidden: torch.Tensor,
        _: LayerOperations,
    ) -> Pair:
        for tensor in (attended, hidden):
            _mark(tensor)
        feed = layer.feed_forward
        return self._leave(
            attended,
            hidden,
            (layer.post_norm.weight, layer.post_norm.eps),
            _of(layer.attention.output),
            _of(feed.gate_up),
            _of(feed.down),
            feed.activation == "gelu_tanh",
        )


def _of(linear: Linear) -> tuple[Weight, Bias]:
    return linear.weight, linear.bias


def _mark(tensor: torch.Tensor | None) -> None:
    if tensor is not None and len(tensor) > 1:
        torch._dynamo.mark_dynamic(tensor, 0)
