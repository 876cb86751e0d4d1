"""docs/anthropic.md: its request is answered, its tables are those of the code."""

from __future__ import annotations

import json
import pathlib
import re

from radixserve.api.anthropic import schema, shapes
from tests.api.anthropic_talk import answered
from tests.api.tool_talk import gateway_of, written

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "anthropic.md").read_text()


def test_its_request_is_answered(renderer):
    [(path, body)] = re.findall(r"```json\nPOST (\S+)\n(.*?)```", PAGE, re.DOTALL)
    assert path == "/v1/messages"
    gateway = gateway_of(renderer, written("look_up", city="Oslo"))
    message = answered(gateway, **json.loads(body))
    assert message["stop_reason"] == "tool_use"
    assert message["content"][0]["input"] == {"city": "Oslo"}


def test_it_tells_every_field_and_stop_reason():
    names = {*schema.MessagesRequest.__struct_fields__, *schema.REFUSED}
    untold = {"model", "diagnostics", "user_profile_id", "workspace_id", "billing_policy",
              "fallback_credit_token", "metadata", "inference_geo"}  # fmt: skip
    assert [name for name in sorted(names - untold) if f"`{name}`" not in PAGE] == []
    stops = shapes.MESSAGE["properties"]["stop_reason"]["enum"]
    assert [stop for stop in stops if f"`{stop}`" not in PAGE] == []
