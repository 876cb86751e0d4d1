"""A request's body as JSON, or a 400 that says what is wrong with it.

Owns: the limits of size and number, strict parsing (UTF-8, no duplicate keys, no NaN, no lone
surrogates). Must not know: what the body means.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import Counter
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect

from radixserve.api.faults import BodyTooLarge, RateLimited
from radixserve.errors import Cancelled, InvalidRequest
from radixserve.native.apart import LARGE, apart

MAX_DEPTH = 200
# Parsing holds the interpreter, and so every stream, for some tenths of a second at this many.
# Commas, colons and brackets are counted, those inside of text too.
MAX_VALUES = 1_000_000
KEY_COST = 2  # a key costs as much as so many numbers, beside its value
CONTAINER_COST = 8  # and a list or object
MAX_LARGE = 32  # large bodies that are read or parsed at once
LARGE_SECONDS = 10  # that one more waits for its turn

_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")
_HALF = re.compile("[\ud800-\udfff]")


async def read_json(request: Request, limit: int) -> Any:
    """The body. Long ones are parsed in a thread, so that other requests go on.

    Raises InvalidRequest, BodyTooLarge above `limit` bytes, RateLimited where too many large ones
    are being read, or Cancelled where the client goes away before the end of the body.
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise InvalidRequest(f"the body must be application/json, not {kind}", code="invalid_json")
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise InvalidRequest(f"content-encoding {coding} is not supported", code="invalid_json")
    async with contextlib.AsyncExitStack() as held:
        body = await _read(request, limit, held)
        if len(body) > LARGE:
            return await apart(body, parse, body)
        return parse(body)


def parse(body: bytes) -> Any:
    """The JSON value of `body`. Raises InvalidRequest."""
    containers = body.count(b"[") + body.count(b"{")
    if body.count(b",") + KEY_COST * body.count(b":") + CONTAINER_COST * containers > MAX_VALUES:
        raise InvalidRequest(
            f"the body has too many values: {MAX_VALUES} numbers, {MAX_VALUES // (KEY_COST + 1)} "
            f"keys or {MAX_VALUES // CONTAINER_COST} lists and objects are the most; send it in "
            f"several",
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


async def _read(request: Request, limit: int, held: contextlib.AsyncExitStack) -> bytes:
    told = request.headers.get("content-length", "")
    if told.isascii() and told.isdigit() and int(told[:20]) > limit:
        raise _too_large(limit)
    pieces, size = [], 0
    try:
        async for piece in request.stream():
            if size <= LARGE < size + len(piece):
                await _room_for_large(request, held)
            size += len(piece)
            if size > limit:
                raise _too_large(limit)
            pieces.append(piece)
    except ClientDisconnect:
        raise Cancelled("the client closed the connection amid its body") from None
    return b"".join(pieces)


def large_bodies() -> asyncio.Semaphore:
    """For app.state.large_bodies: how many may be in memory at once until they are parsed."""
    return asyncio.Semaphore(MAX_LARGE)


async def _room_for_large(request: Request, held: contextlib.AsyncExitStack) -> None:
    """Wait until there is room, while the rest waits in the kernel; `held` gives it back."""
    room: asyncio.Semaphore = request.app.state.large_bodies
    try:
        async with asyncio.timeout(LARGE_SECONDS):
            await room.acquire()
    except TimeoutError:
        raise RateLimited(
            f"{MAX_LARGE} large bodies are being read", code="too_many_large_bodies"
        ) from None
    held.callback(room.release)


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is longer than {limit} bytes")


def _broken(why: str) -> InvalidRequest:
    return InvalidRequest(f"the body is not valid JSON: {why}", code="invalid_json")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
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
        if any(map(_HALF.search, texts)):
            raise InvalidRequest(
                f"{path or 'the body'} holds a lone surrogate, which is no text",
                param=path or None,
                code="invalid_unicode",
            )
        left += _children(node, path)
