"""Native sampling on rows of logits.

Owns: how parameters are handed over. Must not know: slots, seeds. The meaning of the filters is
that of kernels.reference.sample.
"""

from __future__ import annotations

from ctypes import byref
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from radixserve.kernels.cpu.library import Library
from radixserve.kernels.cpu.ops import pointer
from radixserve.kernels.cpu.structs import SamplingArgs

Mask = npt.NDArray[np.bool_] | npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Arrays over rows. top_k 0 is off; uniform is in [0, 1); others as in SamplingParams.

    A greedy row takes its best token, equal ones by ascending id, and reads nothing else here.
    """

    temperature: npt.NDArray[np.float32]
    top_k: npt.NDArray[np.int64]
    top_p: npt.NDArray[np.float64]
    min_p: npt.NDArray[np.float64]
    uniform: npt.NDArray[np.float64]
    is_greedy: npt.NDArray[np.bool_]


def sample(
    library: Library, logits: torch.Tensor, draws: Draws, valid_ids: int, mask: Mask | None = None
) -> npt.NDArray[np.int32]:
    """One token for each row; -1 for a row whose best logit is not finite.

    logits: [rows, vocab] float32, only ids below valid_ids are drawn. mask: bool [rows, valid_ids
    or more], True is legal, or int32 [rows, ceil(valid_ids / 32) or more] with token 32 * i + j in
    bit j of word i.
    """
    rows = _rows(logits)
    ids = np.empty(rows, np.int32)
    place = None
    if mask is not None:
        mask = mask if mask.flags.c_contiguous else mask.copy()
        place = mask.ctypes.data
        least = valid_ids if mask.dtype == np.bool_ else -(-valid_ids // 32)
        if mask.shape[0] != rows or mask.shape[1] < least:
            raise ValueError(f"a mask of {mask.shape} for {rows} rows of {valid_ids} ids")
    is_bits = mask is not None and mask.dtype != np.bool_
    arrays = (draws.temperature, draws.top_k, draws.top_p, draws.min_p, draws.uniform)
    library.calls.rs_sample(
        byref(
            SamplingArgs(
                pointer(logits), place if is_bits else None, None if is_bits else place,
                *(a.ctypes.data for a in arrays), draws.is_greedy.ctypes.data, ids.ctypes.data,
                rows, logits.shape[1], valid_ids, 0 if mask is None else mask.shape[1],
            )
        )
    )  # fmt: skip
    return ids


def chosen_logprobs(
    library: Library, logits: torch.Tensor, targets: npt.NDArray[np.int32]
) -> npt.NDArray[np.float32]:
    """log-softmax of each row at its target. logits: [rows, vocab] float32. targets: [rows]."""
    rows = _rows(logits)
    if targets.dtype != np.int32 or targets.shape != (rows,):
        raise ValueError(f"targets are {targets.dtype} {targets.shape} for {rows} rows")
    out = np.empty(rows, np.float32)
    targets = np.ascontiguousarray(targets)
    library.calls.rs_logprobs(
        pointer(logits), rows, logits.shape[1], targets.ctypes.data, out.ctypes.data
    )
    return out


def _rows(logits: torch.Tensor) -> int:
    if logits.dtype != torch.float32 or not logits.is_contiguous():
        raise ValueError(f"logits must be contiguous float32, not {logits.dtype}")
    return int(logits.shape[0])
