"""From logits to token ids.

Owns: greedy choice, temperature and filters, and the draw. Each row is computed by itself, so a
request gets the same tokens alone and in any company. Must not know: how logits were computed,
the scheduler, grammars (a mask is an array).

A draw inverts the cumulative distribution in id order at the uniform number of the token's seed
and position. No vocabulary is sorted: top_k looks at the best k, top_p at a few of the best and,
where these do not hold the mass, at a histogram; rows without either are cumulated as they are.
Which of these ways a row goes depends on nothing but the row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from radixserve.kernels.cpu import sampling as kernel
from radixserve.kernels.cpu.library import Library
from radixserve.plan import Int32, TokenLogprobs
from radixserve.sampling.batch import Int64, SamplingBatch
from radixserve.sampling.edits import Bits, edited
from radixserve.sampling.logprobs import token_logprobs
from radixserve.sampling.random import uniforms
from radixserve.sampling.ranking import Values, rank

Float64 = npt.NDArray[np.float64]

BLOCK = 128  # tokens whose mass is added up before the search looks inside
NUCLEUS = 128  # candidates that most top_p rows are decided by
BINS_PER_NAT = 32  # histogram of logits below the best, for the rest
BINS = 1024


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
    the best token always stays. Raises ValueError where the best logit of a row is not finite.
    """
    if batch.native is not None:
        drawn_ids = _sample_native(batch.native, logits, slots, samples, batch, mask)
        return drawn_ids, _logprobs(logits, drawn_ids.astype(np.int64), slots, batch)
    usable = edited(logits, slots, samples, batch, mask)
    ids = _best(usable[:, : batch.valid_ids])
    _check_finite(usable, ids)
    drawn = np.flatnonzero(~batch.is_greedy[slots])
    if len(drawn):
        ids[drawn] = _draw(_select(usable, drawn), slots[drawn], samples[drawn], batch)
    return ids.astype(np.int32), _logprobs(logits, ids, slots, batch)


def _sample_native(
    native: Library,
    logits: torch.Tensor,
    slots: Int32,
    samples: Int32,
    batch: SamplingBatch,
    mask: Bits | None,
) -> Int32:
    if (samples < batch.free_from[slots]).any():
        # Stop ids stay legal where the mask leaves nothing else, so both are put on together.
        logits, mask = edited(logits, slots, samples, batch, mask), None
    else:
        logits = edited(logits, slots, samples, batch, None)
    is_greedy = batch.is_greedy[slots]
    all_greedy = bool(is_greedy.all())  # then nobody reads a number, and those take 0.15 ms
    draws = kernel.Draws(
        temperature=batch.temperature[slots],
        top_k=batch.top_k[slots],
        top_p=batch.top_p[slots],
        min_p=batch.min_p[slots],
        uniform=np.zeros(len(slots)) if all_greedy else uniforms(batch.seed[slots], samples),
        is_greedy=is_greedy,
    )
    ids = kernel.sample(native, logits.contiguous(), draws, batch.valid_ids, mask)
    refuse_rows(np.flatnonzero(ids < 0))
    return ids


def _select(rows: torch.Tensor, chosen: Int64) -> torch.Tensor:
    if len(chosen) == len(rows):
        return rows
    return rows.index_select(0, torch.from_numpy(chosen).to(rows.device))


def _best(rows: torch.Tensor) -> Int64:
    best: Int64
    if rows.device.type == "cpu":  # measured: a tenth of the time of torch's argmax
        best = rows.numpy().argmax(axis=1)
    else:
        best = rows.argmax(dim=1).cpu().numpy()
    return best


def _draw(logits: torch.Tensor, slots: Int32, samples: Int32, batch: SamplingBatch) -> Int64:
    temperature = torch.from_numpy(batch.temperature[slots]).to(logits.device)
    scaled = logits / temperature[:, None]
    scaled[:, batch.valid_ids :] = float("-inf")
    uniform = uniforms(batch.seed[slots], samples)
    top_k, top_p, min_p = batch.top_k[slots], batch.top_p[slots], batch.min_p[slots]
    ids = np.empty(len(slots), dtype=np.int64)
    by_rank = np.flatnonzero(top_k > 0)
    by_mass = np.flatnonzero((top_k == 0) & (top_p < 1.0))
    free = np.flatnonzero((top_k == 0) & (top_p >= 1.0))
    if len(by_rank):
        rows = _select(scaled, by_rank)
        parts = top_k[by_rank], top_p[by_rank], min_p[by_rank]
        ids[by_rank] = _draw_top_k(rows, uniform[by_rank], *parts)
    if len(by_mass):
        rows = _select(scaled, by_mass)
        ids[by_mass] = _draw_top_p(rows, uniform[by_mass], top_p[by_mass], min_p[by_mass])
    if len(free):
        probs = torch.softmax(_select(scaled, free), dim=1)
        ids[free] = _draw_whole(probs, uniform[free], min_p[free])
    return ids


def _draw_top_k(
    scaled: torch.Tensor, uniform: Float64, top_k: Int64, top_p: Float64, min_p: Float64
) -> Int64:
    values, candidates = rank(scaled, int(top_k.max()))
    weights = _weights(values)
    weights[np.arange(weights.shape[1])[None, :] >= top_k[:, None]] = 0.0
    _drop_tail(weights, top_p * weights.cumsum(axis=1)[:, -1])
    weights[weights < min_p[:, None]] = 0.0
    return _pick(weights, candidates, uniform)


def _draw_top_p(scaled: torch.Tensor, uniform: Float64, top_p: Float64, min_p: Float64) -> Int64:
    probs = torch.softmax(scaled, dim=1)
    total = 1.0 / probs.amax(dim=1).cpu().numpy().astype(np.float64)
    values, candidates = rank(scaled, min(NUCLEUS, scaled.shape[1]))
    weights = _weights(values)
    _drop_tail(weights, top_p * total)
    weights[weights < min_p[:, None]] = 0.0
    ids = _pick(weights, candidates, uniform)
    wide = np.flatnonzero(weights[:, -1] > 0.0)
    if len(wide):
        probs = _select(probs, wide)
        for row, place in enumerate(wide):
            kept = _nucleus(scaled[place].cpu().numpy(), probs[row].cpu().numpy(), top_p[place])
            probs[row].masked_fill_(torch.from_numpy(~kept).to(probs.device), 0.0)
        ids[wide] = _draw_whole(probs, uniform[wide], min_p[wide])
    return ids


def _weights(values: Values) -> Float64:
    """Mass of ranked candidates in units of the best, without an overflow. values: [n, m]."""
    weights: Float64 = np.exp(values.astype(np.float64) - values[:, :1])
    return weights


def _drop_tail(weights: Float64, mass: Float64) -> None:
    """Zero what comes after the shortest beginning that holds `mass`. weights: [n, m] ranked."""
    before = weights.cumsum(axis=1) - weights
    before[:, 0] = -1.0
    weights[before >= mass[:, None]] = 0.0


def _nucleus(scaled: Values, probs: Values, top_p: float) -> npt.NDArray[np.bool_]:
    """The tokens that top_p keeps of a flat row: [vocab]. scaled, probs: [vocab].

    Finds the bin of the histogram in which the mass is reached and ranks that bin alone.
    """
    below = (scaled.max() - scaled) * np.float32(BINS_PER_NAT)
    bins = np.minimum(below, np.float32(BINS - 1)).astype(np.int64)
    mass = np.bincount(bins, probs, BINS)
    reached = mass.cumsum()
    wanted = top_p * reached[-1]
    last = min(int(np.searchsorted(reached, wanted)), int(bins.max()))
    inside = np.flatnonzero(bins == last)
    inside = inside[np.argsort(-scaled[inside], kind="stable")]
    weights = probs[inside].astype(np.float64)
    before = reached[last] - mass[last] + weights.cumsum() - weights
    kept: npt.NDArray[np.bool_] = bins < last
    kept[inside[before < wanted]] = True
    return kept


def _pick(weights: Float64, candidates: Int64, uniform: Float64) -> Int64:
    order = candidates.argsort(axis=1)
    mass = np.take_along_axis(weights, order, 1).cumsum(axis=1)
    place = _first_past(mass, uniform * mass[:, -1])
    rows = np.arange(len(place))
    picked: Int64 = candidates[rows, order[rows, place]]
    return picked


def _draw_whole(probs: torch.Tensor, uniform: Float64, min_p: Float64) -> Int64:
    """Draw from what min_p leaves of the distribution. probs: [n, vocab], any positive sum."""
    if min_p.any():
        floor = torch.from_numpy(min_p.astype(np.float32)).to(probs.device)
        least = probs.amax(dim=1) * floor
        probs = probs.masked_fill(probs < least[:, None], 0.0)
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
    bound = np.minimum(target, np.nextafter(cumulated[:, -1], 0.0))
    found: Int64 = (cumulated > bound[:, None]).argmax(axis=1)
    return found


def _check_finite(rows: torch.Tensor, best: Int64) -> None:
    """A NaN is the best of its row, so looking at the best finds it, as it finds infinities."""
    values = rows.gather(1, torch.from_numpy(best).to(rows.device)[:, None])[:, 0]
    refuse_rows((~torch.isfinite(values)).nonzero().flatten().numpy(force=True))


def refuse_rows(bad: Int64) -> None:
    """Raise ValueError where `bad`, rows without a finite best logit, has any."""
    if len(bad):
        raise ValueError(
            f"rows {bad.tolist()} have no finite best logit: the mask leaves nothing, or the "
            "model gave NaN or infinity"
        )


@dataclass(frozen=True, slots=True)
class LogprobOrder:
    """Rows of a step that want log-probabilities: [n], how many best, and ids by name, of each."""

    rows: Int64
    tops: Int64
    named: tuple[tuple[int, ...], ...]


def order_logprobs(slots: Int32, batch: SamplingBatch) -> LogprobOrder | None:
    """What the rows of these slots want; None where none wants any."""
    rows = np.flatnonzero(batch.wants_logprobs[slots])
    if not len(rows):
        return None
    named = tuple(batch.named.get(slot, ()) for slot in slots[rows].tolist())
    return LogprobOrder(rows, batch.top[slots[rows]], named)


def _logprobs(
    logits: torch.Tensor, ids: Int64, slots: Int32, batch: SamplingBatch
) -> dict[int, TokenLogprobs]:
    order = order_logprobs(slots, batch)
    if order is None:
        return {}
    rows = order.rows
    chosen = ids[rows].astype(np.int32)
    if batch.native is not None and not order.tops.any() and not any(order.named):
        values = kernel.chosen_logprobs(batch.native, _select(logits, rows), chosen)
        none = np.zeros((1, 0), np.int32), np.zeros((1, 0), np.float32)
        return {int(r): TokenLogprobs(values[i : i + 1], *none) for i, r in enumerate(rows)}
    return told_logprobs(order, _select(logits, rows), chosen, batch.valid_ids)


def told_logprobs(
    order: LogprobOrder, logits: torch.Tensor, chosen: Int32, valid_ids: int
) -> dict[int, TokenLogprobs]:
    """Of the order's rows: logits [n, vocab] float32 as the model gave them, chosen [n] ids."""
    distinct = tuple(sorted({token for each in order.named for token in each}))
    best = min(int(order.tops.max()), valid_ids)
    found = token_logprobs(logits, chosen, best, valid_ids, distinct)
    places = {token: best + place for place, token in enumerate(distinct)}
    told = {}
    for i, (row, top) in enumerate(zip(order.rows, order.tops)):
        columns = [*range(min(int(top), best)), *(places[token] for token in order.named[i])]
        told[int(row)] = TokenLogprobs(
            found.chosen[i : i + 1],
            found.top_ids[i : i + 1, columns],
            found.top[i : i + 1, columns],
        )
    return told
