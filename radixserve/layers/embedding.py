"""Token embedding and output head, which may be one matrix.

Owns: the two matrices and whether they share storage. Must not know: sampling, files.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


class Embedding:
    """table: [vocab_size, hidden_size]. head: the same tensor when tied, else its own."""

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        *,
        is_tied: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.table = torch.empty(vocab_size, hidden_size, dtype=dtype, device=device)
        self.head = self.table if is_tied else torch.empty_like(self.table)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """ids: [tokens] int64. Returns [tokens, hidden_size]."""
        return F.embedding(ids, self.table)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden: [k, hidden_size]. Returns [k, vocab_size] float32."""
        return F.linear(hidden, self.head).float()
