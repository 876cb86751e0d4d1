"""A decoder that computes in the native library: a whole step is one call.

Owns: the packed parameters. Must not know: pages, requests, how the library computes.
"""

from __future__ import annotations

import numpy as np
import torch

from radixserve.kernels.cpu import ops
from radixserve.kernels.cpu.library import Library
from radixserve.kernels.cpu.packed import Arena, pack, packed_bytes
from radixserve.kernels.cpu.paged import LayerWeights, NativeDecoder
from radixserve.layers.context import ForwardContext
from radixserve.models.decoder import Decoder, DecoderLayer

KEPT_ROWS = 64
"""Rows whose logits keep their memory: new memory for 32 rows, 6 MB, took 1 ms a step."""


class NativeModel:
    """Token ids to hidden states to logits, as Decoder, for float32 and bfloat16 on the CPU."""

    def __init__(self, decoder: Decoder, library: Library) -> None:
        """Takes a filled decoder apart: a matrix is packed and its plain form let go, so memory
        peaks at the model and one layer, or the embedding. `decoder` is of no use afterwards."""
        self.spec, self.dtype = decoder.spec, decoder.dtype
        self._library = library
        self._logits = _untouched(KEPT_ROWS, self.spec.vocab_size)
        arena = Arena(_packed_size(decoder))
        head, table = decoder.embedding.head, decoder.embedding.table
        norm, inv_freq = decoder.norm.weight, decoder.inv_freq
        del decoder.embedding
        embedding = pack(table, arena=arena)
        self._head = embedding if head is table else pack(head, arena=arena)
        del head, table
        layers = []
        while decoder.layers:
            layers.append(_packed(decoder.layers.pop(0), arena))
        self.steps = NativeDecoder(library, embedding, layers, norm, inv_freq, self.spec.rms_eps)

    @torch.inference_mode()
    def forward(self, ids: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        """One pass over the tokens of a step, whose K and V go into the cache of ctx.attention.

        ids: [tokens] int64. Returns [tokens, hidden_size], or those of ctx.wanted, the final norm
        done. Raises ValueError where the attention is not native, IndexError for an id that the
        table lacks.
        """
        paged = ctx.attention.paged
        if paged is None:
            raise ValueError("native parameters need native attention")
        return self.steps.forward(ids, paged, ctx.wanted)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden: [k, hidden_size]. Returns [k, vocab_size] float32, never rounded: in bfloat16
        logits of 25 are an eighth apart and tie. What is returned for up to KEPT_ROWS rows is
        overwritten by the next call."""
        out = self._logits[: len(hidden)] if len(hidden) <= KEPT_ROWS else None
        return ops.linear(self._library, hidden, self._head, dtype=torch.float32, out=out)


def _untouched(*size: int) -> torch.Tensor:
    """float32 memory that the system gives as it is first written, in large pages if it has any."""
    return torch.from_numpy(np.empty(size, np.float32))


def _packed_size(decoder: Decoder) -> int:
    tables = {id(table): table for table in (decoder.embedding.table, decoder.embedding.head)}
    size = sum(packed_bytes(table) for table in tables.values())
    for layer in decoder.layers:
        attention, feed_forward = layer.attention, layer.feed_forward
        size += packed_bytes(feed_forward.gate_up.weight, gated=True)
        for linear in (attention.qkv, attention.output, feed_forward.down):
            size += packed_bytes(linear.weight)
    return size


def _packed(layer: DecoderLayer, arena: Arena) -> LayerWeights:
    attention, feed_forward = layer.attention, layer.feed_forward
    q_norm, k_norm = attention.q_norm, attention.k_norm
    return LayerWeights(
        input_norm=layer.input_norm.weight,
        post_norm=layer.post_norm.weight,
        qkv=pack(attention.qkv.weight, arena=arena),
        qkv_bias=attention.qkv.bias,
        q_norm=None if q_norm is None else q_norm.weight,
        k_norm=None if k_norm is None else k_norm.weight,
        output=pack(attention.output.weight, arena=arena),
        output_bias=attention.output.bias,
        gate_up=pack(feed_forward.gate_up.weight, gated=True, arena=arena),
        gate_up_bias=feed_forward.gate_up.bias,
        down=pack(feed_forward.down.weight, arena=arena),
        down_bias=feed_forward.down.bias,
    )
