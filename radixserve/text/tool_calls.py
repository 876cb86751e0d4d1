"""The syntaxes in which models write tool calls.

Owns: what a call looks like in each, as text to show and as a structural tag to enforce; which one
a model speaks. Must not know: requests, any dialect, how a grammar is made.
"""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from radixserve.text.tool_calls_json import CALL, CALLS, END, PYTHON, hermes, llama3, mistral
from radixserve.text.tool_calls_python import check_names, keywords, pythonic
from radixserve.text.tool_calls_stream import Reader, ToolCallParser

SyntaxName = Literal["hermes", "mistral", "llama3_json", "pythonic", "generic"]
Format = dict[str, Any]

# What models mark their calls with; often a token of its own.
MARKS = (CALL, END, CALLS, PYTHON)

_ALPHABET = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Syntax:
    """How calls are written: begin, then for each `head` (in which NAME stands for the function),
    the arguments and `tail`, with `separator` between them, then end.

    trigger: what is never text, always a call; "" where a call stands at the very beginning of an
    output or nowhere. has_many: several calls in one output; False where the templates of such
    models refuse to show them again. is_python: arguments are those of a Python call. id_length: of
    a call's id.
    """

    name: SyntaxName
    begin: str
    head: str
    tail: str
    separator: str
    end: str
    trigger: str
    reader: Reader
    marked_reader: Reader
    mark: str = ""
    has_many: bool = True
    is_python: bool = False
    id_length: int = 24

    def parser(self, names: Collection[str], *, is_marked: bool = False) -> ToolCallParser:
        """For one output. names: of the functions that may be called. is_marked: calls begin so
        that no JSON text can be taken for one."""
        return ToolCallParser(self.marked_reader if is_marked else self.reader, names)

    def new_id(self, prefix: str = "call_") -> str:
        """Of a call. prefix: what a dialect begins them with, where the syntax leaves it free."""
        drawn = "".join(secrets.choice(_ALPHABET) for _ in range(self.id_length))
        return drawn if self.id_length == 9 else f"{prefix}{drawn}"

    def example(self, name: str, arguments: str) -> str:
        """One call as text. arguments: JSON of an object."""
        if self.is_python:
            arguments = keywords(arguments)
        return f"{self.begin}{self.head.replace('NAME', name)}{arguments}{self.tail}{self.end}"

    @property
    def written(self) -> str:
        """What stands in an output from the end of its last call's last argument on, a text."""
        return ('"' if self.is_python else '"}') + self.tail + self.end

    def calls(
        self, tools: Sequence[tuple[str, Mapping[str, Any]]], *, many: bool, is_marked: bool = False
    ) -> Format:
        """The format of one call, or with `many` of at least one. tools: name and schema of the
        arguments; the schema of tool i stands at /content/tags/i/content/json_schema. Raises
        InvalidRequest for a name that the syntax cannot write."""
        if self.is_python:
            check_names(name for name, _ in tools)
        style = {"style": "python"} if self.is_python else {}
        tags = [
            {
                "type": "tag",
                "begin": self.head.replace("NAME", name),
                "content": {"type": "json_schema", "json_schema": schema, **style},
                "end": self.tail,
            }
            for name, schema in tools
        ]
        content = {
            "type": "tags_with_separator",
            "tags": tags,
            "separator": self.separator,
            "at_least_one": True,
            "stop_after_first": not (many and self.has_many),
        }
        begin = (self.mark if is_marked else "") + self.begin
        return {"type": "tag", "begin": begin, "content": content, "end": self.end}

    def text_or(self, calls: Format) -> tuple[Format, str]:
        """The format of text that may end with `calls`, and the pointer to those in it."""
        if not self.trigger:
            return {"type": "or", "elements": [calls, self.text()]}, "/elements/0"
        return {
            "type": "triggered_tags",
            "triggers": [self.trigger],
            "tags": [calls],
            "excludes": self._strays,
            "stop_after_first": True,
        }, "/tags/0"

    def text(self) -> Format:
        """The format of text in which no call stands."""
        if self.trigger:
            return {"type": "any_text", "excludes": [self.trigger, *self._strays]}
        return {"type": "regex", "pattern": _NO_CALL if self.is_python else _NO_OBJECT}

    @property
    def _strays(self) -> list[str]:
        """Marks that are no words beside a call either."""
        return [self.end] if self.end in MARKS else []


# Neither "{" nor the "<|" of a control token comes first.
_NO_OBJECT = r"([^{<][\s\S]*|<([^|][\s\S]*)?)?"
# Nor does a "[" that a name follows.
_NO_CALL = r"\s*([^\[\s][\s\S]*|\[\s*([^A-Za-z_\s][\s\S]*)?)?"

_HERMES = Syntax(
    name="hermes",
    begin=CALL,
    head='\n{"name": "NAME", "arguments": ',
    tail="}\n",
    separator=f"{END}\n{CALL}",
    end=END,
    trigger=CALL,
    reader=hermes,
    marked_reader=hermes,
)
_GENERIC = Syntax(
    name="generic",
    begin=_HERMES.begin,
    head=_HERMES.head,
    tail=_HERMES.tail,
    separator=_HERMES.separator,
    end=_HERMES.end,
    trigger=_HERMES.trigger,
    reader=hermes,
    marked_reader=hermes,
)
_MISTRAL = Syntax(
    name="mistral",
    begin=f"{CALLS} [",
    head='{"name": "NAME", "arguments": ',
    tail="}",
    separator=", ",
    end="]",
    trigger=CALLS,
    reader=mistral,
    marked_reader=mistral,
    id_length=9,
)
_LLAMA3 = Syntax(
    name="llama3_json",
    begin="",
    head='{"name": "NAME", "parameters": ',
    tail="}",
    separator="; ",
    end="",
    trigger="",
    reader=llama3("{", PYTHON),
    marked_reader=llama3(PYTHON),
    mark=PYTHON,
    has_many=False,
)
_PYTHONIC = Syntax(
    name="pythonic",
    begin="[",
    head="NAME(",
    tail=")",
    separator=", ",
    end="]",
    trigger="",
    reader=pythonic,
    marked_reader=pythonic,
    is_python=True,
)
SYNTAXES: dict[str, Syntax] = {
    each.name: each for each in (_HERMES, _MISTRAL, _LLAMA3, _PYTHONIC, _GENERIC)
}

# What a template says where its model was trained on a syntax; the first that is found counts.
# XML in <tool_call> and names behind [TOOL_CALLS] are other syntaxes.
_SIGNS: tuple[tuple[str, SyntaxName], ...] = (
    (r"<function=|\[ARGS\]", "generic"),
    (re.escape(CALL), "hermes"),
    (re.escape(CALLS), "mistral"),
    (r"\[func_name1\(|\w+\(\w+=\w+, ?\w+=", "pythonic"),
    (r'<\|python_tag\|>|"parameters": ', "llama3_json"),
)


@dataclass(frozen=True, slots=True)
class ToolSpeech:
    """How the served model is told of tools. is_described: by a system block of ours, since its
    template does not tell it."""

    syntax: Syntax
    is_described: bool


def speech_of(template: str, parser: str = "template") -> ToolSpeech:
    """What a model with this chat template speaks. parser: the name of a syntax, or
    "template": the one that the template shows."""
    shows_tools = re.search(r"\btools\b", template) is not None
    name = parser
    if parser == "template":
        signs = (name for sign, name in _SIGNS if re.search(sign, template))
        name = next(signs, "generic") if shows_tools else "generic"
    return ToolSpeech(SYNTAXES[name], name == "generic" or not shows_tools)
