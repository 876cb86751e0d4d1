"""What the tests of constraints over a scripted gateway have in common."""

from __future__ import annotations

import pytest

from tests.api.talk import CHAT, COMPLETIONS, hello

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
ANSWER = '{"n": 5}'  # that fits SCHEMA
EBNF = 'root ::= "yes" | "no"'
PLAIN = {CHAT: hello(), COMPLETIONS: {"prompt": "x"}}
BOTH = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
STREAM_OR_NOT = pytest.mark.parametrize("stream", [False, True])


def response_format(**inner):
    return {"type": "json_schema", "json_schema": inner}
