"""The JSON of a tokenizer.json: made ready for use, and asked what kind of tokenizer it is.

Owns: what tokenizer_config.json adds to it, which added tokens are control tokens, and what may be
assumed about its borders between words. Must not know: `tokenizers`.
"""

from __future__ import annotations

import copy
import re
from typing import Any

from radixserve.errors import ModelLoadError
from radixserve.text.files import TextFiles, token_content
from radixserve.text.vocabulary import WORD_PATTERNS, parts_of


def prepare(files: TextFiles) -> dict[str, Any]:
    """The tokenizer.json to use: cutting and padding off, added tokens of the configuration in."""
    spec = dict(files.tokenizer)
    if not isinstance(spec.get("model"), dict) or "vocab" not in spec["model"]:
        raise ModelLoadError("tokenizer.json has no model with a vocabulary")
    spec["truncation"] = spec["padding"] = None
    added = {token["content"]: dict(token) for token in spec.get("added_tokens") or []}
    for token, about in (files.config.get("added_tokens_decoder") or {}).items():
        added.setdefault(token_content(about), {"id": int(token), **_flags(about)})
    for name in ("bos_token", "eos_token"):
        token = added.get(files.named_tokens.get(name, ""))
        if token is not None:
            token["special"] = True
    spec["added_tokens"] = sorted(added.values(), key=lambda token: int(token["id"]))
    return spec


def _flags(about: object) -> dict[str, Any]:
    given = about if isinstance(about, dict) else {}
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {"content": token_content(about)} | {flag: bool(given.get(flag)) for flag in flags}


def control_pattern(spec: dict[str, Any]) -> re.Pattern[str] | None:
    """Finds control tokens as `tokenizers` does: leftmost, longest, with the space they swallow."""
    tokens = [token for token in spec["added_tokens"] if token["special"] and token["content"]]
    tokens.sort(key=lambda token: -len(token["content"]))
    spellings = [
        (r"\s*" if token["lstrip"] else "")
        + re.escape(token["content"])
        + (r"\s*" if token["rstrip"] else "")
        for token in tokens
    ]
    return re.compile("|".join(spellings)) if spellings else None


def has_hard_borders(spec: dict[str, Any]) -> bool:
    """No added token reaches over a space or swallows one."""
    return not any(
        token["lstrip"] or token["rstrip"] or " " in token["content"]
        for token in spec["added_tokens"]
    )


def splits_words(spec: dict[str, Any]) -> bool:
    """Only pre-tokenizers known to look no further back than the piece they are at, and to end a
    piece before the space between two words."""
    normalizer = spec.get("normalizer")
    if normalizer is not None and normalizer["type"] != "NFC":
        return False
    parts = [part for part in parts_of(spec.get("pre_tokenizer")) if part["type"] != "Sequence"]
    regexes = [
        part
        for part in parts
        if (part["type"] == "ByteLevel" and part.get("use_regex", True))
        or (part["type"] == "Split" and part["pattern"].get("Regex") in WORD_PATTERNS)
    ]
    others = [part for part in parts if part not in regexes]
    return (
        bool(regexes)
        and all(part["type"] in ("ByteLevel", "Digits") for part in others)
        and not any(part.get("add_prefix_space") for part in parts)
        and all(part["behavior"] == "Isolated" for part in parts if part["type"] == "Split")
    )


def without_dummy_prefix(spec: dict[str, Any]) -> dict[str, Any]:
    """The same tokenizer for text inside a prompt: nothing is put in front of the first word."""
    pre_tokenizer = copy.deepcopy(spec.get("pre_tokenizer"))
    for part in parts_of(pre_tokenizer):
        if part["type"] == "Metaspace":
            part["prepend_scheme"] = "never"
            part.pop("add_prefix_space", None)
        elif part["type"] == "ByteLevel":
            part["add_prefix_space"] = False
    normalizer = _without_prepend(spec.get("normalizer"))
    return {**spec, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer}


def within_output(spec: dict[str, Any]) -> dict[str, Any]:
    """The same tokenizer for text inside an output: no added token is ever found in it."""
    return {**without_dummy_prefix(spec), "added_tokens": [], "post_processor": None}


def _without_prepend(node: dict[str, Any] | None) -> dict[str, Any] | None:
    if node is None or node["type"] == "Prepend":
        return None
    if node["type"] == "Sequence":
        kept = [_without_prepend(child) for child in node["normalizers"]]
        return {**node, "normalizers": [child for child in kept if child is not None]}
    return node
