"""The tokens that constrained text is made of.

Owns: which ids may ever stand inside constrained text, the grammar engine's table of them. Must not
know: requests, models.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import xgrammar

from radixserve.ints import ceil_div

Words = npt.NDArray[np.int32]


class Vocabulary:
    """Bytes of each token, the ids that end an output, and the width of the model's logits.

    Ids without bytes (control tokens), stop ids, and ids from len(token_bytes) to `columns` are
    never inside constrained text. marks: the tokens of texts that are one token wherever they
    stand; those of them that are control tokens (controls) stand inside the text of constraints
    that say so, and have bytes for that. spells_bytes: every byte is a token of its own, so that n
    bytes take at most n tokens.
    """

    def __init__(
        self,
        token_bytes: list[bytes],
        stop_ids: Iterable[int],
        columns: int,
        marks: Mapping[int, bytes] | None = None,
    ) -> None:
        self.token_bytes = token_bytes[:columns]
        self.stop_ids = tuple(sorted(set(stop_ids)))
        self.columns = columns
        self.marks = {
            text: token
            for token, text in (marks or {}).items()
            if token < len(self.token_bytes) and token not in self.stop_ids
        }
        self.controls = {
            token: text for text, token in self.marks.items() if not self.token_bytes[token]
        }
        for token, text in self.controls.items():
            self.token_bytes[token] = text
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
        self._ordinary[list(self.controls)] = False
        singles = {self.token_bytes[token] for token in self.ordinary_ids()}
        self.spells_bytes = all(bytes([code]) in singles for code in range(256))

    def ordinary_ids(self, *, marks: bool = False) -> list[int]:
        """Every id that may stand inside constrained text."""
        found: list[int] = np.flatnonzero(self._bits(marks)).tolist()
        return found

    @property
    def words(self) -> int:
        """int32 words in a mask row."""
        return ceil_div(self.columns, 32)

    def ordinary(self, without: Iterable[int] = (), *, marks: bool = False) -> Words:
        """The mask row of every id that may stand inside constrained text."""
        bits = self._bits(marks)
        bits[list(without)] = False
        return pack(bits)

    def row_of(self, ids: Iterable[int]) -> Words:
        """The mask row of exactly these ids."""
        bits = np.zeros(32 * self.words, bool)
        bits[list(ids)] = True
        return pack(bits)

    def _bits(self, marks: bool) -> npt.NDArray[np.bool_]:
        bits = self._ordinary.copy()
        if marks:
            bits[list(self.marks.values())] = True
        return bits


def pack(bits: npt.NDArray[np.bool_]) -> Words:
    """bits: [32 n] -> [n], bit i of word w standing for 32 w + i."""
    return np.packbits(bits, bitorder="little").view(np.int32)
