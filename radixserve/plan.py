"""StepPlan and StepResult: the contract between scheduler and executor.

Owns: what one step computes, as numpy arrays over its rows. A row is one request's share of the
step; prefill chunks, decodes and (later) forced tokens and drafts differ only in these numbers.
Must not know: tensors, sockets, why the scheduler chose what it chose.

Worked example, page_size 4: request in slot 0 has a 6-token prompt of which 4 are cached in page 7
and computes the last two into page 2; the request in slot 1 decodes position 9 in its page 5:

    slots [0, 1]  positions [4, 9]  lengths [2, 1]  ids [p4, p5, 0]  from_last [False, True]
    page_indptr [0, 2, 5]  page_indices [7, 2, 1, 3, 5]  outputs [SAMPLE, SAMPLE]
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NewType

import numpy as np
import numpy.typing as npt

from radixserve.wire.params import SamplingParams

PageId = NewType("PageId", int)
SlotId = NewType("SlotId", int)
Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


class Output(enum.IntEnum):
    """What a row gives back. Bits would allow mixes; a row has one job besides its scores."""

    NONE = 0  # an inner prefill chunk
    SAMPLE = 1  # draw the next token from the last position
    VERIFY = 2  # speculative drafts (refused by executors that cannot)
    HIDDEN = 3  # final hidden states, added up, see HiddenRange


@dataclass(frozen=True, slots=True)
class CopyOrder:
    """Before the forward: copy the first n tokens' K and V of page source to page destination."""

    source: PageId
    destination: PageId
    n: int


@dataclass(frozen=True, slots=True)
class Opened:
    """A request takes a slot: its sampling parameters and the tokens that penalties count.

    prompt, output: int32 ids known so far (output is not empty after a retraction).
    stop_ids: ids masked until min_new_tokens are out.
    logprobs: None, or how many best tokens to report beside each sampled one. logprob_ids: tokens
    to report behind those.
    """

    slot: SlotId
    params: SamplingParams
    prompt: Int32
    output: Int32
    stop_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    logprob_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Appended:
    """Output tokens of a slot that nobody sampled (a grammar forced them), for its penalties."""

    slot: SlotId
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ScoreRange:
    """Row `row` reports log-probabilities of prompt tokens.

    targets: [n] int32, the tokens at positions first + 1 .. first + n, each scored by the logits of
    the position before it. first: a position inside the row. top: how many best beside each. ids:
    tokens behind those.
    """

    row: int
    first: int
    targets: Int32
    top: int
    ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class HiddenRange:
    """Row `row` reports the sum of its final hidden states from position `first` on."""

    row: int
    first: int


@dataclass(frozen=True, slots=True)
class SharedGroup:
    """Rows whose page tables have the same pages [begin, end) and all before: for attention.

    The groups of one row are disjoint and contiguous from page 0, outer ones first; end lies at or
    before each row's first position.
    """

    rows: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One step. rows = len(slots); tokens = lengths.sum().

    slots, positions, lengths: [rows] int32; positions is that of the row's first token.
    ids: [tokens] int32; a token whose row is from_last has 0 here and is the slot's last sample.
    from_last: [rows] bool. outputs: [rows] int8 of Output.
    page_indptr: [rows + 1] int32, page_indices: [page_indptr[-1]] int32: each row's page table
    from token 0 to its last computed token.
    samples: [rows] int32: the index of the token to draw, counted over prompt and output (the
    counter of the random draw); 0 where none is drawn.
    opened and appended are applied before the forward; closed slots are free after the step.
    """

    step: int
    slots: Int32
    positions: Int32
    lengths: Int32
    ids: Int32
    from_last: npt.NDArray[np.bool_]
    outputs: npt.NDArray[np.int8]
    page_indptr: Int32
    page_indices: Int32
    samples: Int32
    opened: tuple[Opened, ...] = ()
    appended: tuple[Appended, ...] = ()
    closed: tuple[SlotId, ...] = ()
    copies: tuple[CopyOrder, ...] = ()
    scores: tuple[ScoreRange, ...] = ()
    hidden: tuple[HiddenRange, ...] = ()
    shared: tuple[SharedGroup, ...] = ()

    @property
    def rows(self) -> int:
        return len(self.slots)

    @property
    def tokens(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """chosen: [n] float32. top_ids: [n, k] int32, top: [n, k] float32: the best, in their order,
    and behind them the ids that were asked for by name, in theirs."""

    chosen: Float32
    top_ids: Int32
    top: Float32


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """rows: [k] int32, the rows that sampled, ascending. ids: [k] int32, what they drew.

    logprobs: by row, for the rows that asked (arrays of length 1).
    scores, hidden: one entry per entry of the plan's, in its order; hidden: [hidden_size] each.
    """

    step: int
    rows: Int32
    ids: Int32
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    scores: tuple[TokenLogprobs, ...] = ()
    hidden: tuple[Float64, ...] = ()
