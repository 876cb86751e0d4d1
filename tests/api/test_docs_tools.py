"""docs/tools.md: its requests are answered, its words are those of the code."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import pytest

import radixserve as rs
from radixserve.text.tool_calls import SYNTAXES
from radixserve.text.tool_calls_prompt import description
from tests.api.scripted import ScriptedGateway
from tests.api.talk import answered

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "tools.md").read_text()
REQUESTS = re.findall(r"```json\nPOST (\S+)\n(.*?)```", PAGE, re.DOTALL)
CALLS = {
    "look_up": '<tool_call>\n{"name": "look_up", "arguments": {"city": "Rome"}}\n</tool_call>',
    "now": '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
}


@pytest.mark.parametrize(("path", "body"), REQUESTS)
def test_its_requests_are_answered(renderer, path, body):
    given = json.loads(body)
    name = given["tools"][0]["function"]["name"]
    gateway = ScriptedGateway(renderer, (CALLS[name],), context_len=4096)
    [choice] = answered(gateway, path, given)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    [call] = choice["message"]["tool_calls"]
    assert call["function"]["name"] == name
    assert gateway.requests[0].constraint.kind == "structural_tag"


def test_its_program_runs():
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    namespace: dict[str, Any] = {}
    exec(compile(code, "tools.md", "exec"), namespace)
    [replies] = re.findall(r"`rs.Mock\((\[.*?\])\)`", PAGE)
    mock = rs.Mock(eval(replies, {"rs": rs}))
    state = namespace["agent"].run("How many live in Rome?", backend=mock)
    assert state.ret_value == "Many."
    assert [each["content"] for each in state.messages()][2] == "2.8 million"
    assert all(hasattr(rs, name) for name in re.findall(r"\brs\.(\w+)", PAGE))


def test_it_tells_every_syntax_and_the_block():
    assert len(REQUESTS) == 2
    assert all(f"| `{name}` |" in PAGE for name in SYNTAXES)
    block = description([{"function": {}}], SYNTAXES["generic"]).splitlines()
    block.remove("{}")
    assert [line for line in block if f"\n  {line}\n" not in PAGE] == []
