"""The prompts of a request as ids.

Owns: text, ids and parts to int32 bytes, and how many prompts go in one request. Must not know:
sampling, replies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np

from radixserve.errors import InvalidRequest
from radixserve.native.calls import Door, room_of, vocabulary
from radixserve.native.tools import check_shown
from radixserve.text.parts import EncodedPrompt
from radixserve.text.tokenizer import check_text

MAX_PROMPTS = 1024


class PromptFields(Protocol):
    """The fields of a native body that hold prompts; exactly one is given."""

    text: str | list[str] | None
    input_ids: list[Any] | None
    input: list[dict[str, Any]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """encoded: what parts became, with their choices; None where the prompt was no parts."""

    ids: bytes
    encoded: EncodedPrompt | None = None


def read_prompts(body: PromptFields, gateway: Door) -> tuple[list[Prompt], bool]:
    """The prompts of a body, and whether they came as a list. Raises InvalidRequest."""
    given = [name for name in ("text", "input_ids", "input") if getattr(body, name) is not None]
    if len(given) != 1:
        found = "none" if not given else " and ".join(given)
        raise InvalidRequest(
            f"give exactly one of text, input_ids and input, not {found}",
            param=given[-1] if given else "text",
        )
    if body.input is not None:
        return [_from_parts(body.input, gateway)], False
    if isinstance(body.text, str):
        return [Prompt(ids=text_bytes(body.text, "text", gateway))], False
    vocab_size = vocabulary(gateway)
    if body.input_ids is not None:
        if not body.input_ids or not isinstance(body.input_ids[0], list):
            return [Prompt(ids=ids_bytes(body.input_ids, "input_ids", vocab_size))], False
        rows = several(body.input_ids, "input_ids")
        return [
            Prompt(ids=ids_bytes(row, f"input_ids[{i}]", vocab_size)) for i, row in enumerate(rows)
        ], True
    texts = several(body.text or [], "text")
    return [
        Prompt(ids=text_bytes(text, f"text[{i}]", gateway)) for i, text in enumerate(texts)
    ], True


def ids_bytes(ids: object, param: str, vocab_size: int) -> bytes:
    """A list of token ids as int32 bytes. Raises InvalidRequest for anything that is no token."""
    try:
        numbers = msgspec.convert(ids, list[int])
    except msgspec.ValidationError:
        raise InvalidRequest(f"{param} must be a list of token ids", param=param) from None
    if not numbers:
        raise InvalidRequest(f"{param} is empty", param=param)
    if min(numbers) < 0 or max(numbers) >= vocab_size:
        bad = next(token for token in numbers if not 0 <= token < vocab_size)
        raise InvalidRequest(
            f"{param}: {bad} is no token; ids are from 0 to {vocab_size - 1}", param=param
        )
    return np.array(numbers, dtype="<i4").tobytes()


def text_bytes(text: str, param: str, gateway: Door) -> bytes:
    """The ids of one prompt text as int32 bytes."""
    check_text(text, param)
    ids = gateway.renderer.encode_text(text, limit=room_of(gateway))
    if not len(ids):
        raise InvalidRequest(f"{param} is empty", param=param)
    return ids.astype("<i4").tobytes()


def text_or_ids(given: object, param: str, gateway: Door) -> list[tuple[bytes, str | None]]:
    """Ids of each prompt, and its text where it came as text. given: a text, ids, or a list of
    either. Raises InvalidRequest."""
    if isinstance(given, str):
        return [(text_bytes(given, param, gateway), given)]
    if not isinstance(given, list) or not given:
        raise InvalidRequest(
            f"{param} must be text, a list of token ids, or a list of either", param=param
        )
    vocab_size = vocabulary(gateway)
    if not isinstance(given[0], str | list):
        return [(ids_bytes(given, param, vocab_size), None)]
    found: list[tuple[bytes, str | None]] = []
    for i, each in enumerate(several(given, param)):
        at = f"{param}[{i}]"
        if isinstance(each, str):
            found.append((text_bytes(each, at, gateway), each))
        else:
            found.append((ids_bytes(each, at, vocab_size), None))
    return found


def several(given: list[Any], param: str) -> list[Any]:
    """The list itself. Raises InvalidRequest unless it has from 1 to MAX_PROMPTS entries."""
    if not 1 <= len(given) <= MAX_PROMPTS:
        raise InvalidRequest(
            f"{param} has {len(given)} entries; from 1 to {MAX_PROMPTS} go in one request",
            param=param,
        )
    return given


def _from_parts(parts: list[dict[str, Any]], gateway: Door) -> Prompt:
    """ "unconditional" may stand beside "choices"; only choose.py reads it."""
    plain = [
        {name: value for name, value in part.items() if name != "unconditional"}
        if "choices" in part
        else part
        for part in parts
    ]
    for i, part in enumerate(parts):
        if "tools" in part:
            check_shown(part["tools"], f"input[{i}].tools")
        if isinstance(choices := part.get("choices"), list):
            several(choices, f"input[{i}].choices")
    encoded = gateway.renderer.encode_parts(plain, param="input", limit=room_of(gateway))
    if encoded.choices is None and not len(encoded.ids):
        raise InvalidRequest("input is empty", param="input")
    return Prompt(ids=encoded.ids.astype("<i4").tobytes(), encoded=encoded)
