"""Messages as a chat template wants them.

Owns: the forms in which clients write messages, and the marks that keep user text apart from the
template's own while both pass through it. Must not know: templates, tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from radixserve.errors import InvalidRequest
from radixserve.text.tokenizer import Run, check_text

PART_JOINER = ""  # between the text parts of one content list, as OpenAI's clients expect
MAX_DEPTH = 200  # of what is walked by functions that call themselves
_TEXT_PARTS = {"text": "text", "refusal": "refusal"}
# Noncharacters: valid in UTF-8, never exchanged between programs, no template trims them.
_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


def normalise(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages with string content, for templates that know no other.

    A list of text parts is joined with nothing between, null or missing content becomes "", the
    role developer becomes system, tool-call arguments written as JSON text become objects (other
    text is left as it is). Raises InvalidRequest naming the message, for parts that are no text,
    for lone surrogates and for what is nested too deeply.
    """
    if not isinstance(messages, list | tuple):
        raise InvalidRequest("messages must be a list", param="messages")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _message(message: object, param: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequest("a message is an object with role and content", param=param)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequest("role must be a non-empty string", param=f"{param}.role")
    _check_depth(message, param)
    for text in strings_in(message):
        check_text(text, param)
    plain = dict(message)
    plain["role"] = "system" if role == "developer" else role
    plain["content"] = _content(message.get("content"), f"{param}.content")
    if plain.get("tool_calls"):
        calls = plain["tool_calls"]
        plain["tool_calls"] = [
            _tool_call(call, f"{param}.tool_calls[{i}]") for i, call in enumerate(calls)
        ]
    return plain


def _content(content: object, param: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise InvalidRequest("content must be a string, a list of parts or null", param=param)
    return PART_JOINER.join(_part(part, f"{param}[{i}]") for i, part in enumerate(content))


def _part(part: object, param: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or not isinstance(kind, str):
        raise InvalidRequest("a content part is an object with a type", param=param)
    if kind not in _TEXT_PARTS:
        raise InvalidRequest(
            f"content parts of type {kind!r} are not supported; this model reads text only",
            param=param,
        )
    text = part.get(_TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise InvalidRequest(f"a {kind} part needs a string in {_TEXT_PARTS[kind]!r}", param=param)
    return text


def _tool_call(call: object, param: str) -> object:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        return call
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        place = f"{param}.function.arguments"
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError:
            return call
        except RecursionError:
            raise _too_deep(place) from None
        _check_depth(arguments, place)
        for text in strings_in(arguments):
            check_text(text, place)
    return {**call, "function": {**function, "arguments": arguments}}


def _check_depth(value: object, param: str) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        inner = [node for node in level if isinstance(node, Mapping | list | tuple)]
        if not inner:
            return
        level = [
            child
            for node in inner
            for child in (node.values() if isinstance(node, Mapping) else node)
        ]
    raise _too_deep(param)


def _too_deep(param: str) -> InvalidRequest:
    return InvalidRequest("it is nested too deeply", param=param)


def strings_in(value: object) -> Iterator[str]:
    """Every string in a JSON value, keys of objects included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, child in value.items():
            yield from strings_in(key)
            yield from strings_in(child)
    elif isinstance(value, list | tuple):
        for child in value:
            yield from strings_in(child)


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """The same JSON value with every string, keys included, changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {
            map_strings(key, change): map_strings(child, change) for key, child in value.items()
        }
    if isinstance(value, list | tuple):
        return [map_strings(child, change) for child in value]
    return value


def unused_marks(value: object, n: int) -> list[str]:
    """n characters that no string of `value` holds."""
    used = {char for text in strings_in(value) for char in text if "\ufdd0" <= char <= "\ufdef"}
    free = [mark for mark in _MARKS if mark not in used]
    if len(free) < n:
        raise InvalidRequest("the messages use up the noncharacters U+FDD0 to U+FDEF")
    return free[:n]


@dataclass(frozen=True, slots=True)
class Marks:
    """Marks around control tokens that user text spells, so that they can be told, in what the
    template renders, from those that the template wrote itself."""

    begin: str
    end: str

    def protect(self, pieces: Sequence[tuple[str, bool]]) -> str:
        """pieces: a text cut at the control tokens it spells, see Tokenizer.split_control."""
        return "".join(
            f"{self.begin}{piece}{self.end}" if is_control else piece
            for piece, is_control in pieces
        )

    def runs(self, rendered: str, spells_control: Callable[[str], bool]) -> list[Run]:
        """A control token that stands whole between marks is plain text, the rest is the
        template's. Marks that a template has torn apart still end a run, so that nothing the user
        wrote grows into a control token when the marks go."""
        pieces = re.split(f"([{self.begin}{self.end}])", rendered)
        runs = []
        for i in range(0, len(pieces), 2):
            marks = pieces[i - 1 : i] + pieces[i + 1 : i + 2]
            quoted = marks == [self.begin, self.end] and spells_control(pieces[i])
            runs.append(Run(pieces[i], special=not quoted))
        return runs
