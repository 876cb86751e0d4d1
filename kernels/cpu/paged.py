"""Native attention over the paged KV cache, and whole decoder steps on it.

Owns: the native plan of a step and the arrays it was made from. Must not know: layers, requests.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from radixserve.kernels.cpu.library import Library
from radixserve.kernels.cpu.ops import pointer, type_of
from radixserve.kernels.cpu.packed import PackedWeight
from radixserve.kernels.cpu.structs import STAGES, LayerArgs, ModelArgs, RowsArgs, ShapeArgs
from radixserve.plan import Int32, SharedGroup

Pointers = ctypes.Array[ctypes.c_void_p]


class PagedAttention:
    """Attention over one KV pool: plan once per step, attend once per layer.

    Rows whose page tables share pages are attended together over those where the plan says so; a
    row's result is the same to the bit with and without.
    """

    def __init__(
        self,
        library: Library,
        num_qo_heads: int,
        scale: float,
        k_cache: Sequence[torch.Tensor],
        v_cache: Sequence[torch.Tensor],
    ) -> None:
        """k_cache, v_cache: one [pages, page_size, num_kv_heads, head_dim] for each layer."""
        dtype = type_of(*k_cache, *v_cache)
        _, page_size, num_kv_heads, head_dim = k_cache[0].shape
        if num_qo_heads % num_kv_heads or head_dim % 2:
            raise ValueError(f"{num_qo_heads} on {num_kv_heads} heads of {head_dim}")
        self.library = library
        self.dtype = k_cache[0].dtype
        self.caches = list(zip(k_cache, v_cache, strict=True))
        self.k_pointers, self.v_pointers = _pointers(k_cache), _pointers(v_cache)
        self._num_qo_heads, self._head_dim = num_qo_heads, head_dim
        self._tokens = 0
        shape = ShapeArgs(num_qo_heads, num_kv_heads, head_dim, page_size, scale, dtype)
        self.handle = library.new_plan(shape)
        weakref.finalize(self, library.calls.rs_plan_free, self.handle)

    def plan(
        self,
        positions: Int32,
        lengths: Int32,
        page_indptr: Int32,
        page_indices: Int32,
        shared: Sequence[SharedGroup] = (),
    ) -> None:
        """Rows as in attention.base.AttentionInputs; shared as in plan.SharedGroup."""
        arrays = [_int32(a) for a in (positions, lengths, page_indptr, page_indices)]
        sizes = [len(group.rows) for group in shared]
        arrays += [
            _int32(np.cumsum([0, *sizes])),
            _int32([row for group in shared for row in group.rows]),
            _int32([group.begin for group in shared]),
            _int32([group.end for group in shared]),
        ]
        self._tokens = int(arrays[1].sum())
        rows = RowsArgs(len(positions), len(shared), *(a.ctypes.data for a in arrays))
        self.library.calls.rs_plan_fill(self.handle, ctypes.byref(rows))

    @property
    def slots(self) -> int:
        """Address of the slot of each planned token: [tokens] int64, until the next plan."""
        return ctypes.addressof(self.library.calls.rs_plan_slots(self.handle).contents)

    def store(self, layer_id: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Put K and V of the planned tokens, [tokens, num_kv_heads, head_dim], into the cache."""
        slots = self.library.calls.rs_plan_slots(self.handle)
        index = torch.from_numpy(np.ctypeslib.as_array(slots, (self._tokens,)).copy())
        for cache, part in zip(self.caches[layer_id], (k, v), strict=True):
            cache.view(-1, *cache.shape[2:]).index_copy_(0, index, part)

    def attend(self, layer_id: int, q: torch.Tensor) -> torch.Tensor:
        """q: [tokens, num_qo_heads, head_dim], rows apart by any stride, K and V of the step
        stored. Returns [tokens, num_qo_heads * head_dim]."""
        dense = (self._num_qo_heads, self._head_dim)
        if (
            q.dtype != self.dtype
            or q.shape != (self._tokens, *dense)
            or (q.numel() and q.stride()[1:] != (self._head_dim, 1))
        ):
            raise ValueError(f"q is {q.dtype} {tuple(q.shape)} with strides {q.stride()}")
        out = torch.empty(len(q), self._num_qo_heads * self._head_dim, dtype=q.dtype)
        k_cache, v_cache = self.caches[layer_id]
        self.library.calls.rs_attend(
            self.handle, pointer(q), q.stride(0), pointer(k_cache), pointer(v_cache),
            pointer(out), out.stride(0),
        )  # fmt: skip
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """Parameters of one layer, by the names of structs.LayerArgs; None where the model has none.

    qkv: the rows of q, k and v one after another. gate_up: gated.
    """

    input_norm: torch.Tensor
    qkv: PackedWeight
    output: PackedWeight
    post_norm: torch.Tensor
    gate_up: PackedWeight
    down: PackedWeight
    qkv_bias: torch.Tensor | None = None
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    output_bias: torch.Tensor | None = None
    gate_up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None

    def tensors(self) -> dict[str, torch.Tensor | None]:
        parts = {name: getattr(self, name) for name in self.__slots__}
        return {name: p.data if isinstance(p, PackedWeight) else p for name, p in parts.items()}


class NativeDecoder:
    """A model whose whole step is one native call."""

    def __init__(
        self,
        library: Library,
        embedding: PackedWeight,
        layers: Sequence[LayerWeights],
        norm: torch.Tensor,
        inv_freq: torch.Tensor,
        eps: float,
    ) -> None:
        """embedding: of [vocab, hidden_size]. norm: [hidden_size]. inv_freq: [head_dim / 2]
        float32."""
        parts = [layer.tensors() for layer in layers]
        dtype = type_of(embedding.data, norm, *(t for part in parts for t in part.values()))
        type_of(inv_freq)
        self._library = library
        self._vocab, self._hidden_size = embedding.outs, embedding.inputs
        self._kept = (embedding, layers, norm, inv_freq)
        self._layers = (LayerArgs * len(layers))(
            *(LayerArgs(**{name: pointer(t) for name, t in part.items()}) for part in parts)
        )
        self._model = ModelArgs(
            len(layers), self._hidden_size, layers[0].gate_up.outs, eps, dtype,
            pointer(inv_freq), pointer(embedding.data), pointer(norm),
            ctypes.addressof(self._layers), None,
        )  # fmt: skip

    def keep_times(self) -> npt.NDArray[np.int64]:
        """From now on each step adds the nanoseconds of its structs.STAGES to what is returned."""
        self._times = np.zeros(len(STAGES), np.int64)
        self._model.times = self._times.ctypes.data
        return self._times

    def forward(
        self, ids: torch.Tensor, paged: PagedAttention, wanted: torch.Tensor | None = None
    ) -> torch.Tensor:
        """ids: [tokens] int64, the tokens that paged has planned. wanted: [k] int64, ascending, or
        None for all. Returns hidden states of the wanted, [k, hidden_size], the final norm done; K
        and V of all tokens are in the cache."""
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self._vocab:
            raise IndexError(f"ids reach from {int(ids.min())} to {int(ids.max())}")
        _check_wanted(wanted, len(ids))
        count = len(ids) if wanted is None else len(wanted)
        hidden = torch.empty(count, self._hidden_size, dtype=paged.dtype)
        self._library.calls.rs_decoder(
            ctypes.byref(self._model), paged.handle, paged.k_pointers, paged.v_pointers,
            pointer(ids), None if wanted is None else pointer(wanted), count, pointer(hidden),
        )  # fmt: skip
        return hidden


def _check_wanted(wanted: torch.Tensor | None, tokens: int) -> None:
    if wanted is None or not len(wanted):
        return
    first, last = int(wanted[0]), int(wanted[-1])
    if wanted.dtype != torch.int64 or first < 0 or last >= tokens or (wanted.diff() <= 0).any():
        raise IndexError(f"wanted tokens are {wanted.dtype}, {first} to {last} of {tokens}")


def _pointers(tensors: Sequence[torch.Tensor]) -> Pointers:
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))


def _int32(values: npt.ArrayLike) -> Int32:
    return np.ascontiguousarray(values, dtype=np.int32)
