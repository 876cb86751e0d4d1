"""What changes a request's logits before a token is taken from them.

Owns: bias, penalties, grammar masks and masked stop ids, each on whole batches without a pass over
the vocabulary where the tokens are few. Must not know: temperature, filters, draws.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from radixserve.plan import Int32
from radixserve.sampling.batch import Int64, SamplingBatch

Bits = npt.NDArray[np.bool_] | npt.NDArray[np.int32]


def edited(
    logits: torch.Tensor, slots: Int32, samples: Int32, batch: SamplingBatch, mask: Bits | None
) -> torch.Tensor:
    """The logits that tokens are taken from; a copy where anything changes, else the same tensor.

    logits: [k, vocab] float32. slots, samples: [k]. mask: bool [k, valid_ids or more], True is
    legal, or int32 [k, ceil(vocab / 32)] with token 32 * i + j in bit j of word i.
    In order: logit_bias, repetition_penalty over prompt and output (l > 0: l / r, else l * r),
    frequency and presence over output (l - f * count - p), the mask, and stop ids while fewer than
    min_new_tokens are out. Where the mask leaves only stop ids they stay legal.
    """
    early = np.flatnonzero(samples < batch.free_from[slots])
    changed = np.flatnonzero(batch.is_edited[slots])
    if mask is None and not len(early) and not len(changed):
        return logits
    out = logits.clone()
    penalise(out, slots, batch)
    if mask is not None:
        illegal = torch.from_numpy(~unpacked(mask, batch.valid_ids)).to(out.device)
        out[:, : batch.valid_ids].masked_fill_(illegal, float("-inf"))
    hold_back_stops(out, slots, samples, batch, is_masked=mask is not None)
    return out


def penalise(out: torch.Tensor, slots: Int32, batch: SamplingBatch) -> None:
    """Bias and penalties on logits [k, vocab] float32, in place. The host waits for nothing."""
    changed = np.flatnonzero(batch.is_edited[slots])
    _add_bias(out, [row for row in changed if slots[row] in batch.bias], slots, batch)
    _penalise(out, [row for row in changed if slots[row] in batch.seen], slots, batch)


def hold_back_stops(
    out: torch.Tensor, slots: Int32, samples: Int32, batch: SamplingBatch, *, is_masked: bool
) -> None:
    """Mask stop ids of rows that still have tokens to make, in place, after the mask."""
    for row in np.flatnonzero(samples < batch.free_from[slots]):
        _mask_stops(out[row], batch.stop_ids[int(slots[row])], batch.valid_ids, is_masked)


def moved(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """The array on the device; to a GPU through pinned memory, so that the host need not wait."""
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def unpacked(mask: Bits, width: int) -> npt.NDArray[np.bool_]:
    """The mask as bool [k, width]; see edited for the packed form."""
    if mask.dtype == np.bool_:
        return mask[:, :width].astype(np.bool_)
    words = np.ascontiguousarray(mask).view(np.uint8)
    return np.unpackbits(words, axis=1, count=width, bitorder="little").view(np.bool_)


def _add_bias(out: torch.Tensor, rows: list[np.intp], slots: Int32, batch: SamplingBatch) -> None:
    if not rows:
        return
    biases = [batch.bias[int(slots[row])] for row in rows]
    at = _places(rows, [bias.ids for bias in biases], out.device)
    out[at] += moved(np.concatenate([bias.values for bias in biases]), out.device)


def _penalise(out: torch.Tensor, rows: list[np.intp], slots: Int32, batch: SamplingBatch) -> None:
    if not rows:
        return
    chosen = [int(slots[row]) for row in rows]
    seen = [batch.seen[slot] for slot in chosen]
    params = [batch.params[slot] for slot in chosen]
    sizes = [len(tokens.ids) for tokens in seen]

    def spread(values: list[float]) -> npt.NDArray[np.float64]:
        return np.repeat(np.array(values), sizes)

    repetition = spread([p.repetition_penalty for p in params]).astype(np.float32)
    counts = np.concatenate([tokens.counts for tokens in seen])
    less = spread([p.frequency_penalty for p in params]) * counts
    less += spread([p.presence_penalty for p in params]) * (counts > 0)
    at = _places(rows, [tokens.ids for tokens in seen], out.device)
    values = out[at]
    factor = moved(repetition, out.device)
    values = torch.where(values > 0, values / factor, values * factor)
    out[at] = values - moved(less.astype(np.float32), out.device)


def _places(
    rows: list[np.intp], ids: list[Int64], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    row_of_each = np.repeat(np.array(rows, dtype=np.int64), [len(part) for part in ids])
    columns = np.concatenate(ids)
    return moved(row_of_each, device), moved(columns, device)


def _mask_stops(row: torch.Tensor, stops: Int64, valid_ids: int, masked: bool) -> None:
    at = moved(stops, row.device)
    before = row[at]
    row[at] = float("-inf")
    if masked:
        is_empty = row[:valid_ids].max() == float("-inf")
        row[at] = before.masked_fill(~is_empty, float("-inf"))
