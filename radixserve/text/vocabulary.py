"""The bytes of every token.

Owns: how a tokenizer.json spells bytes (byte-level alphabet, byte fallback, added tokens), and the
word patterns that are known by heart. Must not know: how text becomes ids.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from radixserve.errors import ModelLoadError

# How byte-level tokenizers cut text into words: the patterns of Llama 3 and of Qwen 2.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_WORDS = _WORDS % r"\p{N}{1,3}"
QWEN2_WORDS = _WORDS % r"\p{N}"
WORD_PATTERNS = frozenset({LLAMA3_WORDS, QWEN2_WORDS})

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WORD_SPACE = "\u2581"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """token_bytes: by id, empty for control tokens and unused ids. special_bytes: the texts of the
    control tokens."""

    token_bytes: list[bytes]
    special_bytes: dict[int, bytes]


def read_vocabulary(spec: dict[str, Any]) -> Vocabulary:
    """The bytes that each id of `spec`, the JSON of a tokenizer.json, adds to the output.

    Raises ModelLoadError when the tokenizer is of a kind whose bytes are not known.
    """
    words = _words(spec["model"])
    added = {int(token["id"]): token for token in spec.get("added_tokens") or []}
    size = max([*words, *added], default=-1) + 1
    token_bytes = [b""] * size
    spell = _speller(spec)
    for token, text in words.items():
        token_bytes[token] = spell(text)
    special_bytes = {}
    for token, about in added.items():
        text = about["content"].encode()
        if about["special"]:
            special_bytes[token] = text
        token_bytes[token] = b"" if about["special"] else text
    return Vocabulary(token_bytes, special_bytes)


def byte_alphabet() -> dict[str, int]:
    """Character -> byte of the byte-level alphabet: printable Latin-1 characters stand for
    themselves, the other bytes, in order, for the characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def parts_of(node: object) -> Iterator[dict[str, Any]]:
    """A normalizer, pre-tokenizer or decoder of a tokenizer.json, and all that it is made of."""
    if isinstance(node, dict):
        yield node
        for key in ("normalizers", "pretokenizers", "decoders"):
            for child in node.get(key) or []:
                yield from parts_of(child)


def _words(model: dict[str, Any]) -> dict[int, str]:
    if model.get("type") not in (None, "BPE", "Unigram"):
        raise ModelLoadError(f"tokenizers of kind {model.get('type')} are not supported")
    vocab = model["vocab"]
    if isinstance(vocab, list):  # Unigram: [text, score] in the order of ids
        return {i: text for i, (text, _) in enumerate(vocab)}
    return {token: text for text, token in vocab.items()}


def _speller(spec: dict[str, Any]) -> Callable[[str], bytes]:
    decoders = list(parts_of(spec.get("decoder")))
    kinds = {part["type"] for part in decoders}
    if "ByteLevel" in kinds:
        return _byte_level_speller()
    spaced = "Metaspace" in kinds or any(
        part["type"] == "Replace" and part["pattern"] == {"String": _WORD_SPACE}
        for part in decoders
    )
    if not spaced:
        raise ModelLoadError(
            f"the tokenizer's decoder ({', '.join(sorted(kinds)) or 'none'}) is not supported; "
            "byte-level and sentencepiece-style tokenizers are"
        )
    has_byte_tokens = "ByteFallback" in kinds
    return lambda text: _sentencepiece_bytes(text, has_byte_tokens)


def _byte_level_speller() -> Callable[[str], bytes]:
    alphabet = byte_alphabet()

    def spell(text: str) -> bytes:
        try:
            return bytes([alphabet[char] for char in text])
        except KeyError:  # an added word outside the alphabet is its own text
            return text.encode()

    return spell


def _sentencepiece_bytes(text: str, has_byte_tokens: bool) -> bytes:
    match = _BYTE_TOKEN.fullmatch(text) if has_byte_tokens else None
    if match is not None:
        return bytes([int(match[1], 16)])
    return text.replace(_WORD_SPACE, " ").encode()
