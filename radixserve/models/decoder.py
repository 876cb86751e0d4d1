"""The decoder of the Llama family, driven by ModelSpec.

Owns: how the layers are put together and which checkpoint name fills which part of a parameter.
Must not know: files, pages, requests, sampling.
"""

from __future__ import annotations

from typing import Protocol

import torch

from radixserve.attention.base import AttentionShape, AttentionTensors
from radixserve.layers.attention import Attention, AttentionOptions
from radixserve.layers.context import ForwardContext
from radixserve.layers.embedding import Embedding
from radixserve.layers.linear import Linear
from radixserve.layers.norm import RmsNorm
from radixserve.layers.operations import LayerOperations
from radixserve.layers.rotary import frequencies, rotation, scale_llama3
from radixserve.models.spec import ModelSpec, RopeSpec


def attention_shape(spec: ModelSpec) -> AttentionShape:
    """The shape that every layer of this model gives its attention backend."""
    return AttentionShape(
        num_layers=spec.num_layers,
        num_qo_heads=spec.num_qo_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        scale=spec.head_dim**-0.5,
        windows=spec.windows,
        softcap=spec.softcap,
        has_sinks=spec.has_sinks,
    )


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> torch.Tensor:
    """The frequencies that `rope` asks for: [head_dim / 2] float32."""
    inv_freq = frequencies(head_dim, rope.theta)
    if rope.kind == "linear":
        inv_freq = inv_freq / rope.factor
    if rope.kind == "llama3":
        inv_freq = scale_llama3(
            inv_freq,
            factor=rope.factor,
            low_freq_factor=rope.low_freq_factor,
            high_freq_factor=rope.high_freq_factor,
            original_context=rope.original_context,
        )
    if rope.divisors:
        inv_freq = inv_freq / torch.tensor(rope.divisors, dtype=torch.float32)
    return inv_freq


class FeedForward:
    """down(act(gate(x)) * up(x)): [tokens, hidden_size] -> [tokens, hidden_size]."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.activation = spec.activation
        self.gate_up = Linear(
            spec.hidden_size,
            (spec.intermediate_size, spec.intermediate_size),
            has_bias=spec.has_mlp_bias,
            dtype=dtype,
            device=device,
        )
        self.down = Linear(
            spec.intermediate_size,
            (spec.hidden_size,),
            has_bias=spec.has_mlp_bias,
            dtype=dtype,
            device=device,
        )

    def __call__(self, hidden: torch.Tensor, operations: LayerOperations) -> torch.Tensor:
        gated = operations.gelu_mul if self.activation == "gelu_tanh" else operations.silu_mul
        return self.down(gated(self.gate_up(hidden)))

    def views(self, prefix: str) -> dict[str, torch.Tensor]:
        """Checkpoint name -> the part of a parameter that it fills."""
        gate_up = self.gate_up.views(f"{prefix}.gate_proj", f"{prefix}.up_proj")
        return gate_up | self.down.views(f"{prefix}.down_proj")


class DecoderLayer:
    """Attention and feed-forward, each behind a norm and added to its input."""

    def __init__(
        self,
        layer_id: int,
        spec: ModelSpec,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        options = AttentionOptions(
            has_bias=spec.has_attention_bias,
            has_output_bias=spec.has_output_bias,
            qk_norm_eps=spec.rms_eps if spec.has_qk_norm else None,
        )
        shape = attention_shape(spec)
        self.input_norm, self.post_norm = (
            RmsNorm(spec.hidden_size, spec.rms_eps, dtype=dtype, device=device) for _ in range(2)
        )
        self.attention = Attention(
            layer_id, spec.hidden_size, shape, options, dtype=dtype, device=device
        )
        self.feed_forward = FeedForward(spec, dtype=dtype, device=device)

    def views(self, prefix: str) -> dict[str, torch.Tensor]:
        """Checkpoint name -> the part of a parameter that it fills."""
        norms = {
            f"{prefix}.input_layernorm.weight": self.input_norm.weight,
            f"{prefix}.post_attention_layernorm.weight": self.post_norm.weight,
        }
        attention = self.attention.views(f"{prefix}.self_attn")
        return norms | attention | self.feed_forward.views(f"{prefix}.mlp")


class LayerParts(Protocol):
    """What a layer computes on both sides of its attention. What it adds to the hidden states is
    added by the norm behind it: `delta` is still to come on top of `hidden`, None before the first
    layer. All are [tokens, hidden_size]."""

    def enter(
        self,
        layer: DecoderLayer,
        delta: torch.Tensor | None,
        hidden: torch.Tensor,
        operations: LayerOperations,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What attention takes, of layer.attention.qkv, and the hidden states with delta."""

    def leave(
        self,
        layer: DecoderLayer,
        attended: torch.Tensor,
        hidden: torch.Tensor,
        operations: LayerOperations,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """attended: of layer.attention.attend. The next delta and hidden states."""


class PlainParts:
    """One operation after another."""

    def enter(
        self,
        layer: DecoderLayer,
        delta: torch.Tensor | None,
        hidden: torch.Tensor,
        operations: LayerOperations,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if delta is None:
            normed = layer.input_norm(hidden, operations)
        else:
            normed, hidden = layer.input_norm.add(delta, hidden, operations)
        return layer.attention.qkv(normed), hidden

    def leave(
        self,
        layer: DecoderLayer,
        attended: torch.Tensor,
        hidden: torch.Tensor,
        operations: LayerOperations,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        added = layer.attention.output(attended)
        normed, hidden = layer.post_norm.add(added, hidden, operations)
        return layer.feed_forward(normed, operations), hidden


class Decoder:
    """Token ids to hidden states to logits, in torch. Parameters are empty until `views` are
    filled. parts: how layers compute beside their attention (compiled.py has another way)."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.spec = spec
        self.dtype = dtype
        self.device = device
        self.embedding = Embedding(
            spec.vocab_size,
            spec.hidden_size,
            is_tied=bool(spec.is_tied),
            dtype=dtype,
            device=device,
        )
        self.layers = [
            DecoderLayer(layer_id, spec, dtype=dtype, device=device)
            for layer_id in range(spec.num_layers)
        ]
        self.norm = RmsNorm(spec.hidden_size, spec.rms_eps, dtype=dtype, device=device)
        self.parts: LayerParts = PlainParts()
        self.inv_freq = inverse_frequencies(spec.rope, spec.head_dim).to(device)

    @torch.inference_mode()
    def forward(self, ids: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        """One pass over the tokens of a step; ctx.attention keeps their K and V.

        ids: [tokens] int64. Returns [tokens, hidden_size], or those of ctx.wanted, the final norm
        done.
        """
        turn = rotation(self.inv_freq, ctx.positions)
        hidden = self.embedding.embed(ids)
        delta: torch.Tensor | None = None
        for layer in self.layers:
            projected, hidden = self.parts.enter(layer, delta, hidden, ctx.operations)
            attended = layer.attention.attend(projected, turn, ctx)
            if ctx.wanted is not None and layer is self.layers[-1]:
                attended, hidden = (part.index_select(0, ctx.wanted) for part in (attended, hidden))
                if not len(hidden):
                    return hidden
            delta, hidden = self.parts.leave(layer, attended, hidden, ctx.operations)
        if delta is None:
            return self.norm(hidden, ctx.operations)
        return self.norm.add(delta, hidden, ctx.operations)[0]

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden: [k, hidden_size]. Returns [k, vocab_size] float32."""
        return self.embedding.logits(hidden)

    def views(self) -> dict[str, torch.Tensor]:
        """Checkpoint name -> the part of a parameter that it fills, each element in one view.

        A fused parameter appears as several views of its rows. A tied head has no view.
        """
        views = {"model.embed_tokens.weight": self.embedding.table}
        if self.embedding.head is not self.embedding.table:
            views["lm_head.weight"] = self.embedding.head
        for layer_id, layer in enumerate(self.layers):
            views |= layer.views(f"model.layers.{layer_id}")
        return views | {"model.norm.weight": self.norm.weight}

    @property
    def attention_tensors(self) -> AttentionTensors:
        """What of the parameters attention reads."""
        layers = [layer.attention for layer in self.layers]
        return AttentionTensors(
            sinks=tuple(layer.sinks for layer in layers if layer.sinks is not None),
            kv_scales=tuple(layer.kv_scales for layer in layers),
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of all parameters, a tied head counted once."""
        return sum(view.numel() * view.element_size() for view in self.views().values())
