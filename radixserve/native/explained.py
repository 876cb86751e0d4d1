"""Why a prompt was not cached further, in words.

Owns: the dictionaries that answer explain_cache and show the tree, alike in every dialect. Must not
know: how the cache finds out, HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from radixserve.text.tokenizer import Tokenizer
from radixserve.wire.cache import CacheReport, MissReason, TreeNode

_WORDS: dict[MissReason, str] = {
    "whole": "all of it that can be was cached; the last token is always computed",
    "limit": "what was asked for needs the rest computed, cached or not",
    "off": "the prefix cache is off",
    "no_room": "no page was free to copy the beginning of a page into",
    "pending": "another request of the same step is computing what comes next; a page of it is "
    "shared once it is whole",
    "evicted": "what comes next had been cached and was evicted to make room",
    "flushed": "what comes next had been cached and was flushed",
    "never": "what comes next was never cached, as far as the cache remembers",
}


def cache_fields(report: CacheReport, prompt: bytes, tokenizer: Tokenizer) -> dict[str, Any]:
    """The report on a prompt of int32 bytes.

    matched_tokens: found at admission (cached_tokens counts as well what others computed before
    the request came to it). token, cached_token: what stands behind them in the prompt, and in the
    cache where it goes on with something else. lost_tokens: how many of the following had been
    cached.
    """
    at = 4 * report.matched
    own = int.from_bytes(prompt[at : at + 4], "little") if at < len(prompt) else None
    return {
        "matched_tokens": report.matched,
        "prompt_tokens": len(prompt) // 4,
        "reason": report.reason,
        "explanation": _WORDS[report.reason],
        "token": _token(own, tokenizer),
        "cached_token": _token(report.other, tokenizer),
        "lost_tokens": report.lost,
    }


def tree_fields(rows: Sequence[TreeNode], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """The listing of the tree, nested: one entry for each namespace."""
    told: list[dict[str, Any]] = []
    roots: list[dict[str, Any]] = []
    for row in rows:
        fields: dict[str, Any] = {"namespace": row.namespace} if row.parent is None else {}
        if row.parent is not None:
            fields = {
                "tokens": row.tokens,
                "text": tokenizer.decode(row.ids, skip_special=False),
                "ids": row.ids,
                "is_warm": row.is_warm,
            }
        fields |= {
            "users": row.users,
            "last_used": row.used,
            "left_out": row.left_out,
            "children": [],
        }
        told.append(fields)
        (roots if row.parent is None else told[row.parent]["children"]).append(fields)
    return roots


def _token(token: int | None, tokenizer: Tokenizer) -> dict[str, Any] | None:
    return None if token is None else {"id": token, "text": tokenizer.token_text(token)}
