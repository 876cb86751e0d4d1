"""The attention protocol: what a model layer may ask, and what a backend is given.

Owns: AttentionInputs (one step's geometry), the protocol, the KV layout. Must not know: models,
requests, the scheduler. KV layout of every backend, for each layer, K and V apart:
[pages, page_size, num_kv_heads, head_dim].
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from radixserve.kernels.cpu.paged import PagedAttention
from radixserve.plan import Int32, SharedGroup


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """scale multiplies q @ k (usually head_dim ** -0.5).

    windows: of each layer, the tokens that a query sees, itself the last, 0 for all of them; empty:
    no layer has one. softcap: as in kernels.reference.attend, 0 is off. has_sinks: each head has a
    score beside those of the keys, which comes in AttentionTensors.
    """

    num_layers: int
    num_qo_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    windows: tuple[int, ...] = ()
    softcap: float = 0.0
    has_sinks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTensors:
    """What of a model's parameters attention reads, an entry for each layer, or none at all.

    sinks: [num_qo_heads]. kv_scales: what an fp8 cache holds times which is K and V, two of
    [num_kv_heads] float32; all 1 where there is none.
    """

    sinks: tuple[torch.Tensor, ...] = ()
    kv_scales: tuple[tuple[torch.Tensor, torch.Tensor], ...] = ()


NO_TENSORS = AttentionTensors()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionInputs:
    """Rows of one step, as in StepPlan (numpy, on the host).

    positions: [rows] of each row's first token. lengths: [rows]. page_indptr: [rows + 1].
    page_indices: [page_indptr[-1]]. A row attends causally to positions 0 .. position + length - 1.
    """

    positions: Int32
    lengths: Int32
    page_indptr: Int32
    page_indices: Int32
    shared: tuple[SharedGroup, ...] = ()


class RotatingBackend(Protocol):
    """What a backend may offer beside run: norms and rotation of q and k where it stores them."""

    def run_rotating(
        self,
        layer_id: int,
        heads: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        norms: tuple[torch.Tensor, torch.Tensor] | None,
        eps: float,
    ) -> torch.Tensor:
        """Norm and rotate q and k, store k and v of all rows, then attend.

        heads: [tokens, num_qo_heads + 2 * num_kv_heads, head_dim], q, k, v as projected; q is
        changed. angles: cos and sin, [tokens, head_dim / 2] float32. norms: weights of an rms norm
        of each head of q and of k, [head_dim] each. Returns as run.
        """


class StagedBackend(Protocol):
    """What a backend may offer beside plan: its arrays go to the device together with others'.

    A form says all that launches take from the host: a graph that captured run() after bind() of a
    form serves every later step of that form, given other numbers in the same tensors.
    """

    def prepare(self, inputs: AttentionInputs) -> tuple[Hashable, list[Int32]]:
        """The step's form and arrays. How many there are is the form's, and where every row has
        one token the lengths are few but for the last array's, the page_indices."""

    def bind(self, form: Hashable, arrays: Sequence[torch.Tensor]) -> None:
        """Take prepare's arrays, on the device as int32: run() reads them."""


class AttentionBackend(Protocol):
    """One object per executor; plan once per step, run once per layer.

    shares_prefixes: attends to AttentionInputs.shared at once; other backends ignore the hint.
    paged: the native cache and plan, for layers that keep more than attention native; None where
    the backend is not the native one. rotating: takes q, k and v before their rotation, or None.
    staged: plans in two halves, or None.
    """

    shares_prefixes: bool
    paged: PagedAttention | None
    rotating: RotatingBackend | None
    staged: StagedBackend | None

    def plan(self, inputs: AttentionInputs) -> None:
        """Prepare for the step: gather indices, masks, split sizes."""

    def run(self, layer_id: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Store k and v of all rows into the layer's pages, then attend.

        q: [tokens, num_qo_heads, head_dim]. k, v: [tokens, num_kv_heads, head_dim], rotary done.
        Returns [tokens, num_qo_heads * head_dim] in q's dtype.
        """
