"""A request's body as JSON, or a 400 that says what is wrong with it.

Owns: the limits of size and number, strict parsing (UTF-8, no duplicate keys, no NaN, no lone
surrogates). Must not know: what the body means.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from fastapi import Request

from radixserve.api.faults import BodyTooLarge
from radixserve.errors import InvalidRequest

IN_THREAD = 256 * 1024
MAX_DEPTH = 200
# Parsing holds the interpreter, and so every stream, for about a second at this many.
MAX_VALUES = 4_000_000
CONTAINER_COST = 8  # a list or object costs as much as so many numbers

_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")


async def read_json(request: Request, limit: int) -> Any:
    """The body. Long ones are parsed in a thread, so that other requests go on.

    Raises InvalidRequest, or BodyTooLarge above `limit` bytes.
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise InvalidRequest(f"the body must be application/json, not {kind}", code="invalid_json")
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise InvalidRequest(f"content-encoding {coding} is not supported", code="invalid_json")
    body = await _read(request, limit)
    if len(body) > IN_THREAD:
        return await asyncio.to_thread(parse, body)
    return parse(body)


def parse(body: bytes) -> Any:
    """The JSON value of `body`. Raises InvalidRequest."""
    containers = body.count(b"[") + body.count(b"{")
    if body.count(b",") + CONTAINER_COST * containers > MAX_VALUES:
        raise InvalidRequest(
            f"the body has too many values: {MAX_VALUES} numbers or {MAX_VALUES // CONTAINER_COST} "
            f"lists and objects are the most",
            code="body_too_complex",
        )
    try:
        value = _DECODER.decode(body.decode())
    except UnicodeDecodeError as error:
        raise _broken(f"byte {error.start} is not UTF-8") from None
    except RecursionError:
        raise _broken("it is nested too deeply") from None
    except ValueError as error:
        raise _broken(str(error)) from None
    if containers > MAX_DEPTH:
        _check_depth(value)
    if _HALF_PAIR.search(body):
        _check_text(value)
    return value


async def _read(request: Request, limit: int) -> bytes:
    told = request.headers.get("content-length", "")
    if told.isascii() and told.isdigit() and int(told[:20]) > limit:
        raise _too_large(limit)
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        pieces.append(piece)
    return b"".join(pieces)


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is longer than {limit} bytes")


def _broken(why: str) -> InvalidRequest:
    return InvalidRequest(f"the body is not valid JSON: {why}", code="invalid_json")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!a} stands twice in one object")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)


def _children(value: Any, path: str) -> list[tuple[Any, str]]:
    if isinstance(value, dict):
        dot = "." if path else ""
        return [(child, f"{path}{dot}{ascii(key)[1:-1]}") for key, child in value.items()]
    if isinstance(value, list):
        return [(child, f"{path}[{i}]") for i, child in enumerate(value)]
    return []


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        if not level:
            return
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
    if level:
        raise _broken("it is nested too deeply")


def _check_text(value: Any) -> None:
    """Raise InvalidRequest, naming the field, where a string holds half of a surrogate pair."""
    left = [(value, "")]
    while left:
        node, path = left.pop()
        texts = [node] if isinstance(node, str) else list(node) if isinstance(node, dict) else []
        if any("\ud800" <= ch <= "\udfff" for text in texts for ch in text):
            raise InvalidRequest(
                f"{path or 'the body'} holds a lone surrogate, which is no text",
                param=path or None,
                code="invalid_unicode",
            )
        left += _children(node, path)
