"""Calls of tools that a mock makes, scripted or made up.

Owns: which calls a script may make, the form of calls in a reply, made-up ones. Must not know: how
ids of tokens are made.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from radixserve.lang.backends.base import Body
from radixserve.lang.backends.samples import sample
from radixserve.lang.errors import BackendError
from radixserve.lang.toolkit import ToolCall, Turn, named_in


def turn_said(said: str, body: Body) -> Turn:
    """What a script says as a turn. Raises BackendError for a call that `body` does not allow."""
    turn = said if isinstance(said, Turn) else Turn(said)
    allowed = names_in(body)
    for call in turn.calls:
        if call.name not in allowed:
            raise BackendError(
                500, "bad_script", f"the mock is to call {call.name!r}; it may call {allowed}"
            )
    return turn


def names_in(body: Body) -> list[str]:
    """The functions that a call's output may call."""
    choice = body.get("tool_choice")
    if choice == "none":
        return []
    known = [tool["function"]["name"] for tool in body.get("tools") or ()]
    return named_in(choice) or known


def must_call(body: Body) -> bool:
    match body.get("tool_choice"):
        case "required" | {"type": "function"} | {"allowed_tools": {"mode": "required"}}:
            return True
        case _:
            return False


def made_up(body: Body, rng: random.Random) -> Turn:
    """A call of one of the tools, with arguments that fit."""
    name = rng.choice(names_in(body))
    [spec] = [tool for tool in body["tools"] if tool["function"]["name"] == name]
    schema = spec["function"].get("parameters") or {"type": "object", "properties": {}}
    written = sample({"json_schema": {"type": "object", **schema}}, rng)
    return Turn("", [ToolCall(name, json.loads(written or "{}"))])


def markup(calls: Sequence[ToolCall]) -> str:
    """The calls as the mock's model writes them."""
    return "".join(f"<call>{call}</call>" for call in calls)


def calls_to_json(calls: Sequence[ToolCall], first: int) -> list[dict[str, Any]]:
    """first: number of the first, for ids of those that have none."""
    listed = [call.to_json() for call in calls]
    return [{**each, "id": each["id"] or f"call_{first + i}"} for i, each in enumerate(listed)]
