"""Tool calls that are JSON objects with a name and arguments.

Owns: reading them in the syntaxes of Hermes and Qwen, Mistral, Llama 3. Must not know: requests.

Arguments are told as they come where an object begins with its name and they are next; any other
order is read once the object is whole. What is no call of a known function stays text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator

from radixserve.text.tool_calls_stream import Reader, Source, Steps, more, said_until, starts_with

CALL, END = "<tool_call>", "</tool_call>"
CALLS = "[TOOL_CALLS]"
PYTHON = "<|python_tag|>"

_HEAD = re.compile(
    r'\{\s*"name"\s*:\s*"(?P<name>[^"\\]*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_BLANKS = " \t\r\n"


def hermes(source: Source) -> Steps:
    """<tool_call>{..}</tool_call>, each with one call or a list of them."""
    while (yield from said_until(source, CALL)):
        if not (yield from _calls(source, len(CALL), END)):
            source.say(source.take(len(CALL)))


def mistral(source: Source) -> Steps:
    """[TOOL_CALLS] [{..}, {..}]"""
    while (yield from said_until(source, CALLS)):
        if not (yield from _calls(source, len(CALLS), "")):
            source.say(source.take(len(CALLS)))


def llama3(*beginnings: str) -> Reader:
    """{..}; {..} and no text before it: an output that begins with one of `beginnings`, PYTHON or
    "{"."""

    def read(source: Source) -> Steps:
        for mark in beginnings:
            if (yield from starts_with(source, mark)):
                yield from _calls(source, len(mark.rstrip("{")), "", between=";")
                return

    return read


def _calls(source: Source, at: int, end: str, between: str = ",") -> Generator[None, None, bool]:
    """Take the calls from `at` on with the text before them, and their `end` where there is one;
    False where there are none, and then nothing is taken."""
    found = is_list = False
    while True:
        at = yield from _blanks(source, at)
        if not (yield from more(source, at)):
            if found:
                source.take(at)
            return found
        char = source.text[at]
        if char == "{" and (yield from _call(source, at)):
            found, at = True, 0
        elif char == "[" and not found and not is_list and between == ",":
            is_list, at = True, at + 1
        elif char == between and found:
            at += 1
        elif char == "]" and is_list and found:
            source.take(at + 1)
            is_list, at = False, 0
            if not end:
                return True
        else:
            if found:
                is_end = bool(end) and (yield from starts_with(source, end, at))
                source.take(at + len(end) if is_end else 0)
            return found


def _blanks(source: Source, at: int) -> Generator[None, None, int]:
    """The place of the next character that is no blank."""
    while (yield from more(source, at)) and source.text[at] in _BLANKS:
        at += 1
    return at


def _call(source: Source, at: int) -> Generator[None, None, bool]:
    """Take the object at `at` and tell its call; False where it is no call."""
    whole = Balance()
    seen = at
    while True:
        head = _HEAD.match(source.text, at)
        if head is not None and head["name"] in source.names:
            source.take(head.end())
            source.call(head["name"])
            yield from _value(source, source.argue, Balance())
            yield from _value(source, lambda _: None, Balance(depth=1))
            return True
        length = whole.end(source.text[seen:])
        if length is not None:
            return _whole_call(source, at, seen + length)
        seen = len(source.text)
        if source.ended:
            return False
        yield


def _value(source: Source, tell: Callable[[str], None], value: Balance) -> Steps:
    """Take text up to the end of `value`, telling it as it comes."""
    while True:
        length = value.end(source.text)
        tell(source.take(len(source.text) if length is None else length))
        if length is not None or source.ended:
            return
        yield


def _whole_call(source: Source, start: int, end: int) -> bool:
    try:
        found = json.loads(source.text[start:end])
        arguments = found.get("arguments", found.get("parameters", {}))
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
    except (ValueError, RecursionError):
        return False
    name = found.get("name")
    if not isinstance(name, str) or name not in source.names or not isinstance(arguments, dict):
        return False
    source.take(end)
    source.call(name, json.dumps(arguments))
    return True


class Balance:
    """Finds the end of a JSON object, given text piece by piece. depth: brackets that are open."""

    def __init__(self, depth: int = 0) -> None:
        self._depth = depth
        self._in_string = self._is_escaped = False

    def end(self, piece: str) -> int | None:
        """The place in `piece` behind the closing bracket; None where it does not come in it."""
        for at, char in enumerate(piece):
            if self._in_string:
                self._string(char)
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return at + 1
        return None

    def _string(self, char: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif char == "\\":
            self._is_escaped = True
        elif char == '"':
            self._in_string = False
