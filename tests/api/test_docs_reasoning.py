"""docs/reasoning.md: its requests are answered, its names and figures are those of the code."""

from __future__ import annotations

import json
import pathlib
import re

import pytest

from radixserve.api.turns.reasoning import BUDGETS, EFFORTS
from radixserve.text.reasoning import PARSERS
from tests.api.scripted import ScriptedGateway
from tests.api.talk import answered
from tests.api.test_reasoning import OPENING, renderer_of

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "reasoning.md").read_text()
REQUESTS = re.findall(r"```json\nPOST (\S+)\n(.*?)```", PAGE, re.DOTALL)
SAID = {"/v1/chat/completions": '{"in_europe": false}', "/generate": "no"}


@pytest.mark.parametrize(("path", "body"), REQUESTS)
def test_its_requests_are_answered(tmp_path, path, body):
    renderer = renderer_of(tmp_path, OPENING, "think")
    said = f"It is an island.\n</think>\n\n{SAID[path]}"
    gateway = ScriptedGateway(renderer, (said,), context_len=4096)
    reply = answered(gateway, path, json.loads(body))
    if path == "/generate":
        assert (reply["reasoning_content"], reply["text"]) == ("It is an island.", "no")
    else:
        message = reply["choices"][0]["message"]
        assert message["reasoning_content"] == message["reasoning"] == "It is an island."
        assert json.loads(message["content"]) == {"in_europe": False}
    request = gateway.requests[0]
    assert request.reasoning.budget in (40, 200)
    assert request.constraint is not None


def test_it_tells_every_parser_and_effort():
    assert len(REQUESTS) == 2
    rows = " ".join(line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `"))
    assert {*PARSERS, "none", "template"} <= set(re.findall(r"`(\w+)`", rows))
    for effort in EFFORTS:
        assert f"`{effort}`" in PAGE
    for effort, budget in BUDGETS.items():
        figure = re.search(rf"`{effort}` (?:is a budget of )?([\d,]+)", PAGE)
        assert figure is not None
        assert int(figure[1].replace(",", "")) == budget
