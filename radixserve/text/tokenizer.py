"""Text to token ids and back.

Owns: the tokenizer of the model, its control tokens, what opens a prompt. Must not know: chat
templates, requests, torch. Loading needs `tokenizers` alone. Safe to use from several threads;
encoding frees the GIL.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from radixserve.errors import ContextTooLong, InvalidRequest, ModelLoadError
from radixserve.text.files import TextFiles
from radixserve.text.incremental import output_bytes
from radixserve.text.load import read_files
from radixserve.text.tokenizer_spec import (
    control_pattern,
    has_hard_borders,
    prepare,
    splits_words,
    within_output,
    without_dummy_prefix,
)
from radixserve.text.vocabulary import read_vocabulary
from radixserve.weights.source import ModelSource

IdArray = npt.NDArray[np.int32]
_SAMPLE = '{"A b": [1, true]}'


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch of text. special: control tokens spelled in it are tokens, else plain text."""

    text: str
    special: bool


class Tokenizer:
    """The model's tokenizer.

    token_bytes: by id, what the token adds to the output; empty for control tokens and unused
    ids. special_bytes: control token -> its text. special_ids: the control tokens. bos_id: None
    where there is none. eos_ids: what tokenizer and generation_config name as ends. opening_text:
    the control tokens that encode() puts in front of a prompt, "" for none. has_hard_borders: text
    before a control token is tokenised as if it stood alone. splits_words: so is text before the
    space in "a b", two letters of ASCII, whatever follows. longest_token: in bytes.
    """

    def __init__(self, files: TextFiles) -> None:
        spec = prepare(files)
        vocabulary = read_vocabulary(spec)
        self.token_bytes = vocabulary.token_bytes
        self.special_bytes = vocabulary.special_bytes
        self.special_ids = frozenset(vocabulary.special_bytes)
        spelt = itertools.chain(self.token_bytes, self.special_bytes.values())
        self.longest_token = max(map(len, spelt), default=1)
        self._control = control_pattern(spec)
        self._encoders = _Encoders(spec)
        self._check_added(spec)
        named = {name: self._encoders.id_of(text) for name, text in files.named_tokens.items()}
        self.bos_id = named.get("bos_token")
        ends = [named.get("eos_token"), named.get("eot_token"), *files.generation_eos]
        self.eos_ids = frozenset(token for token in ends if token is not None)
        self._opening = self._find_opening(files)
        self.has_hard_borders = has_hard_borders(spec)
        self.splits_words = self.has_hard_borders and splits_words(spec)
        self.opening_text = self.decode(self._opening, skip_special=False)

    @classmethod
    def load(cls, source: ModelSource) -> Tokenizer:
        """Read the tokenizer of a folder or GGUF file. Raises ModelLoadError."""
        return cls(read_files(source))

    @property
    def vocab_size(self) -> int:
        """Highest id + 1, added tokens included; the model may have more rows than that."""
        return len(self.token_bytes)

    def encode(self, text: str, *, opens: bool, special: bool, bos: bool = True) -> IdArray:
        """Ids of `text`: [n] int32.

        opens: the text opens the prompt, so that a dummy prefix space applies and, unless bos is
        False or the text begins with it, the BOS token is put first. special: see Run. Bytes for
        which the model has no token (SmolLM2: U+0016, say) are lost, as they were in training.
        Raises InvalidRequest for lone surrogates.
        """
        return self.encode_runs((Run(text, special),), opens=opens, bos=bos)

    def encode_runs(
        self, runs: Sequence[Run], *, opens: bool, bos: bool = True, limit: int | None = None
    ) -> IdArray:
        """Ids of the runs as one text: borders between runs are no borders between tokens.

        Control tokens come out only where a run with special=True spells them whole. opens, bos:
        see encode. limit: tokens that there is room for. Raises InvalidRequest for lone
        surrogates, ContextTooLong for a text that is too long for `limit` of the longest token,
        before it costs anything.
        """
        text = "".join(run.text for run in runs)
        size = check_text(text)
        if limit is not None and size > limit * self.longest_token:
            raise ContextTooLong(
                f"a text of {size} bytes does not fit {limit} tokens, the longest of which has "
                f"{self.longest_token} bytes",
                param="prompt",
            )
        if self._has_hidden_control(runs, text):
            ids = self._encode_apart(runs, opens)
        else:
            ids = self._encode_whole(text, opens)
        if opens and bos and ids[: len(self._opening)] != self._opening:
            ids = self._opening + ids
        return np.array(ids, dtype=np.int32)

    def to_engine(self) -> str:
        """A tokenizer.json with which plain `tokenizers` encodes text inside an output: without
        dummy prefix, added tokens and what is put around a prompt. "" where it would not give
        this model's tokens."""
        inner = within_output(json.loads(self._encoders.inside()))
        try:
            ids = _build(inner).encode(_SAMPLE, add_special_tokens=False).ids
        except ModelLoadError:
            return ""
        is_exact = b"".join(map(self.bytes_of, ids)) == _SAMPLE.encode()
        return json.dumps(inner, ensure_ascii=False) if is_exact else ""

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Text of the ids, control tokens left out or spelled; broken UTF-8 becomes U+FFFD."""
        return b"".join(self.bytes_of(token, skip_special) for token in ids).decode(
            "utf-8", "replace"
        )

    def bytes_of(self, token: int, skip_special: bool = True) -> bytes:
        """The exact bytes that `token` adds to the output; none for ids outside the vocabulary."""
        return output_bytes(self.token_bytes, self.special_bytes, int(token), skip_special)

    def token_text(self, token: int) -> str:
        """One token for display, control tokens spelled; a part of a character is U+FFFD."""
        return self.bytes_of(token, skip_special=False).decode("utf-8", "replace")

    def id_of(self, text: str) -> int | None:
        """The token that is `text`, as the vocabulary writes it; None where there is none."""
        return self._encoders.id_of(text)

    def split_control(self, text: str) -> list[tuple[str, bool]]:
        """`text` in pieces, each with whether it is the spelling of a control token."""
        pieces = []
        end = 0
        for match in self._find_control(text):
            pieces.append((text[end : match.start()], False))
            pieces.append((match[0], True))
            end = match.end()
        pieces.append((text[end:], False))
        return [piece for piece in pieces if piece[0]]

    def spells_control(self, text: str) -> bool:
        return next(self._find_control(text), None) is not None

    def _find_control(self, text: str) -> Iterator[re.Match[str]]:
        return iter(()) if self._control is None else self._control.finditer(text)

    def _has_hidden_control(self, runs: Sequence[Run], text: str) -> bool:
        """Whether the joined text spells a control token other than within one special run."""
        if len(runs) == 1 and runs[0].special:
            return False
        ends = list(itertools.accumulate(len(run.text) for run in runs))
        spans = [(end - len(run.text), end) for run, end in zip(runs, ends) if run.special]
        return any(
            not any(start <= match.start() and match.end() <= end for start, end in spans)
            for match in self._find_control(text)
        )

    def _encode_whole(self, text: str, opens: bool) -> list[int]:
        """The dummy prefix of a text that opens no prompt is left out at its beginning alone: what
        comes after a control token is tokenised as anywhere."""
        if opens or not self._encoders.has_dummy_prefix:
            return self._encoders.encode(text, opens=opens, special=True)
        first = next(self._find_control(text), None)
        cut = len(text) if first is None else first.start()
        head = self._encoders.encode(text[:cut], opens=False, special=True)
        return head + self._encoders.encode(text[cut:], opens=True, special=True)

    def _encode_apart(self, runs: Sequence[Run], opens: bool) -> list[int]:
        """Control tokens of special runs stand alone; all between two of them is plain text."""
        ids: list[int] = []
        plain = ""
        for run in runs:
            for piece, is_control in self.split_control(run.text) if run.special else ():
                if is_control:
                    ids += self._encoders.encode(plain, opens=opens and not ids, special=False)
                    ids += self._encoders.encode(piece, opens=False, special=True)
                    plain = ""
                else:
                    plain += piece
            plain += "" if run.special else run.text
        return ids + self._encoders.encode(plain, opens=opens and not ids, special=False)

    def _check_added(self, spec: dict[str, Any]) -> None:
        for token in spec["added_tokens"]:
            found = self._encoders.id_of(token["content"])
            if found != token["id"]:
                raise ModelLoadError(
                    f"tokenizer.json gives the added token {token['content']!r} the id "
                    f"{token['id']}, but it would be {found}"
                )

    def _find_opening(self, files: TextFiles) -> list[int]:
        """add_bos_token decides where it is given, else what tokenizer.json itself puts first."""
        add_bos = files.config.get("add_bos_token")
        if add_bos is None:
            return self._encoders.opening()
        if add_bos and self.bos_id is None:
            raise ModelLoadError("add_bos_token is true, but there is no bos_token")
        return [self.bos_id] if add_bos and self.bos_id is not None else []


class _Encoders:
    """The same tokenizer up to four times: opening a prompt or not, parsing control tokens or not.

    `tokenizers` keeps these as settings of the object, so switching one object would race.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        inner = without_dummy_prefix(spec)
        self._special = {True: _build(spec)}
        self._plain = {True: _build(spec, encode_special_tokens=True)}
        self.has_dummy_prefix = inner != spec
        if self.has_dummy_prefix:
            self._special[False] = _build(inner)
            self._plain[False] = _build(inner, encode_special_tokens=True)
        else:
            self._special[False] = self._special[True]
            self._plain[False] = self._plain[True]

    def encode(self, text: str, *, opens: bool, special: bool) -> list[int]:
        if not text:
            return []
        encoder = (self._special if special else self._plain)[opens]
        # encode() would hold the GIL.
        return list(encoder.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def inside(self) -> str:
        """The tokenizer.json for plain text that opens no prompt."""
        text: str = self._plain[False].to_str()
        return text

    def id_of(self, text: str) -> int | None:
        return self._special[True].token_to_id(text)

    def opening(self) -> list[int]:
        """What the post-processor of tokenizer.json puts in front of a text."""
        encoder = self._special[True]
        bare: list[int] = encoder.encode("a", add_special_tokens=False).ids
        whole: list[int] = encoder.encode("a", add_special_tokens=True).ids
        starts = (i for i in range(len(whole)) if whole[i : i + len(bare)] == bare)
        return whole[: next(starts, 0)]


def check_text(text: str, param: str | None = None) -> int:
    """Length in UTF-8. Raises InvalidRequest where `text` holds a lone surrogate, which no UTF-8
    text can."""
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"lone surrogate U+{ord(text[error.start]):04X} at character {error.start}", param=param
        ) from None


def _build(spec: dict[str, Any], *, encode_special_tokens: bool = False) -> tokenizers.Tokenizer:
    try:
        encoder = tokenizers.Tokenizer.from_buffer(json.dumps(spec).encode())
    except ValueError as error:
        raise ModelLoadError(f"tokenizer.json is broken: {error}") from error
    encoder.encode_special_tokens = encode_special_tokens
    return encoder
