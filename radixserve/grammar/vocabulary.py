"""The tokens that constrained text is made of.

Owns: which ids may ever stand inside constrained text, the grammar engine's table of them. Must not
know: requests, models.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import xgrammar

from radixserve.ints import ceil_div

Words = npt.NDArray[np.int32]


class Vocabulary:
    """Bytes of each token, the ids that end an output, and the width of the model's logits.

    Ids without bytes (control tokens), stop ids, and ids from len(token_bytes) to `columns` are
    never inside constrained text. spells_bytes: every byte is a token of its own, so that n bytes
    take at most n tokens.
    """

    def __init__(self, token_bytes: list[bytes], stop_ids: Iterable[int], columns: int) -> None:
        self.token_bytes = token_bytes[:columns]
        self.stop_ids = tuple(sorted(set(stop_ids)))
        self.columns = columns
        if not all(0 <= token < columns for token in self.stop_ids):
            raise ValueError(f"stop ids {self.stop_ids} are not in a vocabulary of {columns}")
        self.info = xgrammar.TokenizerInfo(
            self.token_bytes,
            vocab_type=xgrammar.VocabType.RAW,
            vocab_size=columns,
            stop_token_ids=list(self.stop_ids),
        )
        self._ordinary = np.zeros(32 * self.words, bool)
        self._ordinary[: len(self.token_bytes)] = [bool(text) for text in self.token_bytes]
        self._ordinary[list(self.stop_ids)] = False
        singles = {self.token_bytes[token] for token in self.ordinary_ids}
        self.spells_bytes = all(bytes([code]) in singles for code in range(256))

    @property
    def ordinary_ids(self) -> list[int]:
        """Every id that may stand inside constrained text."""
        found: list[int] = np.flatnonzero(self._ordinary).tolist()
        return found

    @property
    def words(self) -> int:
        """int32 words in a mask row."""
        return ceil_div(self.columns, 32)

    def ordinary(self, without: Iterable[int] = ()) -> Words:
        """The mask row of every id that may stand inside constrained text."""
        bits = self._ordinary.copy()
        bits[list(without)] = False
        return pack(bits)

    def row_of(self, ids: Iterable[int]) -> Words:
        """The mask row of exactly these ids."""
        bits = np.zeros(32 * self.words, bool)
        bits[list(ids)] = True
        return pack(bits)


def pack(bits: npt.NDArray[np.bool_]) -> Words:
    """bits: [32 n] -> [n], bit i of word w standing for 32 w + i."""
    return np.packbits(bits, bitorder="little").view(np.int32)
