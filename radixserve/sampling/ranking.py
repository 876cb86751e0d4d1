"""The best entries of each row, in one fixed order.

Owns: exact top-k with a rule for ties, without sorting a vocabulary. torch.topk picks any of equal
values, which would make a result depend on k and on the kernel. Must not know: requests.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

TIE_ROOM = 16  # entries past k that let most ties at the border be seen whole

Values = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


def rank(rows: torch.Tensor, k: int) -> tuple[Values, Ids]:
    """The k largest of each row, best first, equal values by ascending id.

    rows: [n, width] float32, k <= width. Returns values [n, k] float32 and ids [n, k] int64.
    Among values of -inf at the end the ids are any.
    """
    width = rows.shape[1]
    found = rows.topk(min(k + TIE_ROOM, width), dim=1)
    values, ids = found.values.cpu().numpy(), found.indices.cpu().numpy()
    order = np.lexsort((ids, -values), axis=1)
    values, ids = np.take_along_axis(values, order, 1), np.take_along_axis(ids, order, 1)
    if values.shape[1] < width:
        border = values[:, k - 1]
        for row in np.flatnonzero((values[:, -1] == border) & (border > -np.inf)):
            _settle_tie(rows[row], values[row], ids[row], k)
    return values[:, :k], ids[:, :k]


def _settle_tie(row: torch.Tensor, values: Values, ids: Ids, k: int) -> None:
    """Fill the places of the border value up to k with the lowest of all ids that have it."""
    border = float(values[k - 1])
    begin = int(np.searchsorted(-values, -border))
    tied = torch.nonzero(row == border).flatten()[: k - begin]
    ids[begin:k] = tied.cpu().numpy()
