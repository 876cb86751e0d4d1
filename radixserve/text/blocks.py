"""Blocks of a prompt that are more than their role: those that made calls, and results of calls.

Owns: what they are and their JSON form. Must not know: templates, tokens, how a call is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from radixserve.errors import InvalidRequest

TOOL = "tool"
ASSISTANT = "assistant"
_OBJECTS = "{role: assistant, called} or {role: tool, tool_call_id, name}"
_ROLE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


@dataclass(frozen=True, slots=True)
class Called:
    """One call that an assistant made."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Block:
    """calls: of an assistant, at least one. result_of: the call whose result a tool block is. One
    of the two is there."""

    role: str
    calls: tuple[Called, ...] = ()
    result_of: Called | None = None


# A block that is nothing but its role is the role's name.
AnyBlock = str | Block
Roles = tuple[AnyBlock, ...]


def role_of(block: AnyBlock) -> str:
    return block.role if isinstance(block, Block) else block


def check_role(role: object) -> str:
    """`role` where it is a word that may name a role; raises InvalidRequest."""
    if not isinstance(role, str) or not _ROLE.fullmatch(role):
        raise InvalidRequest(f"a role is a word of up to 64 letters and digits, not {role!r}")
    return role


def block_to_json(block: AnyBlock) -> Any:
    """A role's name, or an object."""
    match block:
        case Block(role=role, calls=calls, result_of=None):
            return {"role": role, "called": [{"id": each.id, "name": each.name} for each in calls]}
        case Block(role=role, result_of=Called(id=call_id, name=name)):
            return {"role": role, "tool_call_id": call_id, "name": name}
        case _:
            return block


def read_block(data: object) -> AnyBlock:
    """What block_to_json() wrote, or anyone. Raises InvalidRequest."""
    if not isinstance(data, Mapping):
        return check_role(data)
    if data.get("role") == ASSISTANT and data.keys() == {"role", "called"}:
        return Block(ASSISTANT, read_called(data["called"]))
    if data.get("role") == TOOL and data.keys() <= {"role", "tool_call_id", "name"}:
        return result_block(data)
    raise InvalidRequest(f"a block is a role, or {_OBJECTS}, not {data!a:.100}")


def result_block(given: Mapping[str, Any]) -> Block:
    """given: has tool_call_id, and may have name."""
    call = Called(_checked_id(given.get("tool_call_id")), _checked_name(given.get("name", "")))
    return Block(TOOL, result_of=call)


def read_called(data: object) -> tuple[Called, ...]:
    """A list of {"id", "name"}. Raises InvalidRequest."""
    if not isinstance(data, list | tuple) or not data:
        raise InvalidRequest("called must be a list of calls, at least one")
    found = []
    for each in data:
        if not isinstance(each, Mapping) or each.keys() != {"id", "name"}:
            raise InvalidRequest("called: a call is an object with an id and a name")
        found.append(Called(_checked_id(each["id"]), _checked_name(each["name"])))
    return tuple(found)


def _checked_id(value: object) -> str:
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise InvalidRequest(
            f"the id of a call has 1 to 128 letters, digits, _, -, . or :, not {value!a:.80}"
        )
    return value


def _checked_name(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_-]{0,64}", value):
        raise InvalidRequest(f"a function is no {value!a:.80}")
    return value
