"""What sampling knows of each request between steps.

Owns: the parameters of every open slot as arrays over slots, the tokens that its penalties count,
its logit_bias and the stop ids masked at its beginning. Must not know: logits, the scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from radixserve.kernels.cpu.library import Library
from radixserve.plan import Opened, SlotId
from radixserve.wire.params import SamplingParams

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Bias:
    """ids: [n] int64, values: [n] float32."""

    ids: Int64
    values: npt.NDArray[np.float32]


class SeenTokens:
    """The distinct tokens a slot's penalties look at, and how often each is in the output.

    Kept as a growing list of ids, not as a row over the vocabulary: a request touches thousands of
    ids at most, of hundreds of thousands.
    """

    def __init__(self, prompt: Int64, output: Int64) -> None:
        distinct, first = np.unique(np.concatenate((prompt, output)), return_inverse=True)
        self._n = len(distinct)
        self._ids = distinct
        self._counts = np.bincount(first[len(prompt) :], minlength=self._n)
        self._place = {int(token): place for place, token in enumerate(distinct)}

    @property
    def ids(self) -> Int64:
        """[n] int64, distinct."""
        return self._ids[: self._n]

    @property
    def counts(self) -> Int64:
        """[n] int64: times in the output; 0 for a token of the prompt alone."""
        return self._counts[: self._n]

    def add(self, token: int) -> None:
        place = self._place.get(token)
        if place is None:
            place = self._n
            if place == len(self._ids):
                room = np.zeros(max(64, place), dtype=np.int64)
                self._ids = np.concatenate((self._ids, room))
                self._counts = np.concatenate((self._counts, room))
            self._ids[place] = token
            self._place[token] = place
            self._n += 1
        self._counts[place] += 1


class SamplingBatch:
    """Sampling state of all slots. The arrays are read by the sampler, [max_slots] each.

    temperature: float32, 1 for greedy slots. top_k: int64, 0 is off. top_p, min_p: float64.
    seed: uint64. is_greedy: the best token is taken, nothing is drawn. is_edited: the slot's logits
    are changed before (bias, penalties). free_from: int64, the first sample index at which stop ids
    are legal. wants_logprobs: bool; top: int64, how many best to report; named: by slot, ids to
    report behind them.
    """

    def __init__(
        self,
        max_slots: int,
        vocab_size: int,
        device: torch.device,
        valid_ids: int | None = None,
        native: Library | None = None,
    ) -> None:
        """vocab_size: columns of the logits. valid_ids: ids below it are tokens; later columns are
        padding of the model's matrix and are never drawn. None: all are tokens. native: draws
        where given, else torch does.
        """
        if valid_ids is not None and not 0 < valid_ids <= vocab_size:
            raise ValueError(f"valid_ids {valid_ids} is not from 1 to vocab_size {vocab_size}")
        self.device = torch.device(device)
        self.native = native
        self.vocab_size = vocab_size
        self.valid_ids = vocab_size if valid_ids is None else valid_ids
        self.temperature = np.ones(max_slots, dtype=np.float32)
        self.top_k = np.zeros(max_slots, dtype=np.int64)
        self.top_p = np.ones(max_slots, dtype=np.float64)
        self.min_p = np.zeros(max_slots, dtype=np.float64)
        self.seed = np.zeros(max_slots, dtype=np.uint64)
        self.is_greedy = np.ones(max_slots, dtype=np.bool_)
        self.is_edited = np.zeros(max_slots, dtype=np.bool_)
        self.free_from = np.zeros(max_slots, dtype=np.int64)
        self.wants_logprobs = np.zeros(max_slots, dtype=np.bool_)
        self.top = np.zeros(max_slots, dtype=np.int64)
        self.named: dict[int, tuple[int, ...]] = {}
        self.params: dict[int, SamplingParams] = {}
        self.bias: dict[int, Bias] = {}
        self.seen: dict[int, SeenTokens] = {}
        self.stop_ids: dict[int, Int64] = {}

    def open(self, opened: Opened) -> None:
        """Take a slot for a request.

        Raises ValueError for a slot in use, a request to draw from without a seed, or a token that
        penalties or bias name and no column has.
        """
        slot, params = opened.slot, opened.params
        if slot in self.params:
            raise ValueError(f"slot {slot} is already open")
        top_k = params.top_k if 0 < params.top_k < self.valid_ids else 0
        greedy = params.greedy or top_k == 1
        if params.seed is None and not greedy:
            raise ValueError(f"the request in slot {slot} draws tokens and has no seed")
        bias = self._bias(params)
        seen = self._seen(opened)
        self.params[slot] = params
        self.temperature[slot] = 1.0 if greedy else params.temperature
        self.top_k[slot] = top_k
        self.top_p[slot] = params.top_p
        self.min_p[slot] = params.min_p
        self.seed[slot] = params.seed or 0
        self.is_greedy[slot] = greedy
        self.wants_logprobs[slot] = opened.logprobs is not None
        self.top[slot] = opened.logprobs or 0
        if opened.logprob_ids:
            self.named[slot] = opened.logprob_ids
        if bias is not None:
            self.bias[slot] = bias
        if seen is not None:
            self.seen[slot] = seen
        self.is_edited[slot] = bias is not None or seen is not None
        stops = np.array([i for i in opened.stop_ids if i < self.valid_ids], dtype=np.int64)
        self.stop_ids[slot] = stops
        self.free_from[slot] = len(opened.prompt) + params.min_new_tokens if len(stops) else 0

    def close(self, slot: SlotId) -> None:
        """Give the slot back. Raises KeyError when it is not open."""
        del self.params[slot], self.stop_ids[slot]
        self.named.pop(slot, None)
        self.bias.pop(slot, None)
        self.seen.pop(slot, None)

    def append(self, slot: SlotId, token: int) -> None:
        """Count a token that was drawn for the slot; to be called for every one, once."""
        seen = self.seen.get(slot)
        if seen is not None:
            seen.add(token)

    def _bias(self, params: SamplingParams) -> Bias | None:
        if not params.logit_bias:
            return None
        ids = np.fromiter(params.logit_bias, dtype=np.int64)
        self._check_ids("logit_bias", ids)
        return Bias(ids, np.fromiter(params.logit_bias.values(), dtype=np.float32))

    def _seen(self, opened: Opened) -> SeenTokens | None:
        params = opened.params
        repetition = params.repetition_penalty != 1.0
        if not repetition and params.frequency_penalty == params.presence_penalty == 0.0:
            return None
        prompt = opened.prompt.astype(np.int64) if repetition else np.zeros(0, dtype=np.int64)
        output = opened.output.astype(np.int64)
        self._check_ids("prompt", prompt)
        self._check_ids("output", output)
        return SeenTokens(prompt, output)

    def _check_ids(self, name: str, ids: Int64) -> None:
        if len(ids) and (ids.min() < 0 or ids.max() >= self.vocab_size):
            raise ValueError(
                f"{name} has ids from {ids.min()} to {ids.max()}, the vocabulary {self.vocab_size}"
            )
