"""Where the mock's texts end: stop texts, patterns, the limit of tokens.

Owns: cutting one text, and the reason that is told. Must not know: what is said, prompts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from radixserve.lang.backends.base import Reply
from radixserve.lang.backends.mock_tokens import END, MockTokenizer


def ended(
    text: str, params: dict[str, Any], meta: dict[str, Any], tokenizer: MockTokenizer, limit: float
) -> Reply:
    """The output that `text` comes to, cut by the stop texts, patterns and the limit of the call.
    params: of sampling. meta: what its meta information has beside."""
    ids, pattern = _matched(tokenizer.encode(text), params.get("stop_regex", ()), tokenizer)
    text = tokenizer.decode(ids) if pattern else text
    stops = [(text.find(stop), stop) for stop in params.get("stop", ()) if stop in text]
    kept, rest = len(ids), ""
    if stops:
        at, stop = min(stops)
        text = text[:at]
        kept, rest = _cut(ids, text, tokenizer)
        reason: dict[str, Any] = {"type": "stop", "matched": stop}
    elif pattern and len(ids) <= limit:
        reason = {"type": "stop", "matched": pattern}
    elif len(ids) >= limit:
        ids = ids[: int(limit)]
        kept, text, reason = len(ids), tokenizer.decode(ids), {"type": "length"}
    else:
        ids, reason = [*ids, END], {"type": "stop", "matched": END}
    counts = {"completion_tokens": len(ids), "kept_ids": kept, "kept_tail": rest}
    return {
        "text": text,
        "output_ids": ids,
        "meta_info": {**meta, "finish_reason": reason, **counts},
    }


def _matched(
    ids: list[int], patterns: Sequence[str], tokenizer: MockTokenizer
) -> tuple[list[int], str | None]:
    """The ids up to the one in which the text first matches, and the pattern that does."""
    for count in range(1, len(ids) + 1) if patterns else ():
        text = tokenizer.decode(ids[:count]).rstrip("\ufffd")
        for pattern in patterns:
            if re.search(pattern, text):
                return ids[:count], pattern
    return ids, None


def _cut(ids: list[int], text: str, tokenizer: MockTokenizer) -> tuple[int, str]:
    """How many ids lie wholly in `text`, and what of it they do not spell."""
    kept = len(ids)
    while not text.startswith(tokenizer.decode(ids[:kept])):
        kept -= 1
    return kept, text[len(tokenizer.decode(ids[:kept])) :]
