"""From logits to token ids.

Owns: greedy choice, temperature and filters, and the draw. Each row is computed by itself, so a
request gets the same tokens alone and in any company. Must not know: how logits were computed,
the scheduler, grammars (a mask is an array).

A draw inverts the cumulative distribution in id order at the uniform number of the token's seed
and position. No vocabulary is sorted: rows without top_k and top_p are cumulated as they are, the
others look at their best candidates, and at more only when those do not decide.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from radixserve.plan import Int32, TokenLogprobs
from radixserve.sampling.batch import Int64, SamplingBatch
from radixserve.sampling.edits import Bits, edited
from radixserve.sampling.logprobs import token_logprobs
from radixserve.sampling.random import uniforms
from radixserve.sampling.ranking import Values, rank

Float64 = npt.NDArray[np.float64]

BLOCK = 128  # tokens whose mass is added up before the search looks inside
FIRST_CANDIDATES = 64
CANDIDATE_GROWTH = 8


def sample(
    logits: torch.Tensor,
    slots: Int32,
    samples: Int32,
    batch: SamplingBatch,
    mask: Bits | None = None,
) -> tuple[Int32, dict[int, TokenLogprobs]]:
    """Draw one token for each row; the caller appends it to the batch.

    logits: [k, vocab] float32, not changed. slots: [k], open in batch. samples: [k], each token's
    index over prompt and output. mask: see edits.edited. Returns ids [k] int32 and, by row 0 ..
    k - 1, the log-probabilities of those whose slot wants them.

    Order: log-probabilities of the raw logits; bias, penalties, masks; temperature; top_k; top_p of
    what is left, renormalised; min_p. Equal logits rank by ascending id, so top_k leaves exactly k;
    the best token always stays. Raises ValueError where a row has no finite logit to take.
    """
    usable = edited(logits, slots, samples, batch, mask)
    ids = np.empty(len(slots), dtype=np.int64)
    is_greedy = batch.is_greedy[slots]
    greedy, drawn = np.flatnonzero(is_greedy), np.flatnonzero(~is_greedy)
    if len(greedy):
        valid = _select(usable, greedy)[:, : batch.valid_ids]
        ids[greedy] = valid.argmax(dim=1).cpu().numpy()
    if len(drawn):
        ids[drawn] = _draw(_select(usable, drawn), slots[drawn], samples[drawn], batch)
    _check_legal(usable, ids)
    return ids.astype(np.int32), _logprobs(logits, ids, slots, batch)


def _select(rows: torch.Tensor, chosen: Int64) -> torch.Tensor:
    if len(chosen) == len(rows):
        return rows
    return rows.index_select(0, torch.from_numpy(chosen).to(rows.device))


def _draw(logits: torch.Tensor, slots: Int32, samples: Int32, batch: SamplingBatch) -> Int64:
    temperature = torch.from_numpy(batch.temperature[slots]).to(logits.device)
    scaled = logits / temperature[:, None]
    scaled[:, batch.valid_ids :] = float("-inf")
    uniform = uniforms(batch.seed[slots], samples)
    top_k, top_p, min_p = batch.top_k[slots], batch.top_p[slots], batch.min_p[slots]
    ids = np.empty(len(slots), dtype=np.int64)
    is_ranked = (top_k > 0) | (top_p < 1.0)
    whole, ranked = np.flatnonzero(~is_ranked), np.flatnonzero(is_ranked)
    if len(whole):
        ids[whole] = _draw_whole(_select(scaled, whole), uniform[whole], min_p[whole])
    if len(ranked):
        rows = _select(scaled, ranked)
        ids[ranked] = _draw_ranked(
            rows, uniform[ranked], top_k[ranked], top_p[ranked], min_p[ranked], batch.valid_ids
        )
    return ids


def _draw_whole(scaled: torch.Tensor, uniform: Float64, min_p: Float64) -> Int64:
    """Draw from the whole softmax, less what min_p drops. scaled: [n, vocab]."""
    probs = torch.softmax(scaled, dim=1)
    if min_p.any():
        floor = torch.from_numpy(min_p.astype(np.float32)).to(probs.device)
        least = probs.amax(dim=1) * floor
        probs.masked_fill_(probs < least[:, None], 0.0)
    if probs.shape[1] % BLOCK:
        probs = torch.nn.functional.pad(probs, (0, -probs.shape[1] % BLOCK))
    blocks = probs.view(len(probs), -1, BLOCK)
    mass = blocks.sum(dim=2).cpu().numpy().astype(np.float64).cumsum(axis=1)
    target = uniform * mass[:, -1]
    block = _first_past(mass, target)
    rows = np.arange(len(block))
    before = np.where(block > 0, mass[rows, block - 1], 0.0)
    inside = blocks[torch.from_numpy(rows), torch.from_numpy(block)].cpu().numpy()
    place = _first_past(inside.astype(np.float64).cumsum(axis=1), target - before)
    return block * BLOCK + place


def _first_past(cumulated: Float64, target: Float64) -> Int64:
    """The first index of each row whose sum passes target, or the last that adds to the sum.

    cumulated: [n, m], not decreasing. target: [n].
    """
    total = cumulated[:, -1:]
    bound = np.minimum(target[:, None], np.nextafter(total, 0.0))
    found: Int64 = (cumulated > bound).argmax(axis=1)
    return found


def _draw_ranked(
    scaled: torch.Tensor,
    uniform: Float64,
    top_k: Int64,
    top_p: Float64,
    min_p: Float64,
    width: int,
) -> Int64:
    """Draw among the best candidates of each row. scaled: [n, vocab]; width: candidates there are.

    Starts with few candidates; rows that these do not decide are drawn again with more.
    """
    limit = np.where(top_k > 0, top_k, width)
    by_mass = top_k == 0
    totals = np.zeros(len(uniform))
    if by_mass.any():
        probs = torch.softmax(_select(scaled, np.flatnonzero(by_mass)), dim=1)
        totals[by_mass] = 1.0 / probs.amax(dim=1).cpu().numpy().astype(np.float64)
    ids = np.empty(len(uniform), dtype=np.int64)
    open_rows = np.arange(len(uniform))
    size = min(width, max(FIRST_CANDIDATES, int(top_k.max())))
    while len(open_rows):
        values, candidates = rank(_select(scaled, open_rows), size)
        kept, is_decided = _filter(
            values, limit[open_rows], top_p[open_rows], min_p[open_rows], totals[open_rows]
        )
        done = is_decided | (size == width)
        rows = open_rows[done]
        ids[rows] = _pick(kept[done], candidates[done], uniform[rows])
        open_rows = open_rows[~done]
        size = min(width, size * CANDIDATE_GROWTH)
    return ids


def _filter(
    values: Values, limit: Int64, top_p: Float64, min_p: Float64, totals: Float64
) -> tuple[Float64, npt.NDArray[np.bool_]]:
    """Weights of ranked candidates, 0 for the filtered, and whether no candidate beyond could stay.

    values: [n, m] best first. limit: [n] candidates that top_k leaves. totals: [n], the mass of the
    row in units of its best token, or 0: the mass of what top_k leaves. Returns [n, m] and [n].
    """
    weights = np.exp(values.astype(np.float64) - values[:, :1])
    weights[np.arange(weights.shape[1])[None, :] >= limit[:, None]] = 0.0
    mass = weights.cumsum(axis=1)
    total = np.where(totals > 0, totals, mass[:, -1])
    before = mass - weights
    before[:, 0] = -1.0
    weights[before >= (top_p * total)[:, None]] = 0.0
    weights[weights < min_p[:, None]] = 0.0
    return weights, (limit <= weights.shape[1]) | (weights[:, -1] == 0.0)


def _pick(weights: Float64, candidates: Int64, uniform: Float64) -> Int64:
    order = candidates.argsort(axis=1)
    mass = np.take_along_axis(weights, order, 1).cumsum(axis=1)
    place = _first_past(mass, uniform * mass[:, -1])
    rows = np.arange(len(place))
    picked: Int64 = candidates[rows, order[rows, place]]
    return picked


def _check_legal(usable: torch.Tensor, ids: Int64) -> None:
    taken = usable.gather(1, torch.from_numpy(ids).to(usable.device)[:, None])
    bad = ~(taken > float("-inf"))
    if bad.any():
        raise ValueError(f"rows {bad.nonzero()[:, 0].tolist()} have no finite logit to take")


def _logprobs(
    logits: torch.Tensor, ids: Int64, slots: Int32, batch: SamplingBatch
) -> dict[int, TokenLogprobs]:
    rows = np.flatnonzero(batch.wants_logprobs[slots])
    if not len(rows):
        return {}
    tops = batch.top[slots[rows]]
    chosen = ids[rows].astype(np.int32)
    found = token_logprobs(_select(logits, rows), chosen, int(tops.max()), batch.valid_ids)
    return {
        int(row): TokenLogprobs(
            found.chosen[i : i + 1], found.top_ids[i : i + 1, :top], found.top[i : i + 1, :top]
        )
        for i, (row, top) in enumerate(zip(rows, tops))
    }
