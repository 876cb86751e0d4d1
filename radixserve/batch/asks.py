"""From a line to a request.

Owns: the shapes that a line may have, what the command line adds to each. Must not know: files, how
a request is served: bodies are read by the code that reads the server's.

A line is one of
  {"prompt": ..}    a completion, with other fields of /v1/completions beside it
  {"messages": ..}  a chat, with other fields of /v1/chat/completions beside it
  {"text": ..}      a record: one user message (where the model has no chat template, a plain
                    prompt) made by the prompt template, which may name any field of the record
  {"custom_id": .., "method": "POST", "url": .., "body": ..}  as OpenAI's batches have them
The first three may have an "id".
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from radixserve.api.openai.jobs import CHAT, COMPLETIONS
from radixserve.batch.lines import is_openai_line
from radixserve.errors import InvalidRequest
from radixserve.wire.params import Constraint
from radixserve.wire.seeds import derive_seed

TEMPLATE = "{text}"
PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_BOUNDS = frozenset({"max_tokens", "max_completion_tokens"})
_CONSTRAINTS = frozenset(
    {"response_format", "regex", "ebnf", "choice", "structural_tag", "structured_outputs"}
    | {"guided_json", "guided_regex", "guided_choice", "guided_grammar"}
)

Body = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What holds where a line says nothing itself.

    fields: of a body, by their OpenAI names. options: more fields where the constraint is the one
    of here. template: text with {field} in it, for records. seed:
    each line gets one of its own, derived from it and the line's number.
    """

    fields: Body = field(default_factory=dict)
    constraint: Constraint | None = None
    options: Body = field(default_factory=dict)
    template: str = TEMPLATE
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """A body for a path of the server."""

    path: str
    body: Body

    @property
    def is_json(self) -> bool:
        """The answer is one JSON value."""
        form = self.body.get("response_format")
        return isinstance(form, dict) and form.get("type") in ("json_schema", "json_object")


def ask_of(value: Body, number: int, defaults: Defaults, *, has_chat: bool) -> Ask:
    """What a line asks for. Raises InvalidRequest."""
    is_openai = is_openai_line(value)
    path, body = _openai(value) if is_openai else _simple(value, defaults.template, has_chat)
    body = {key: given for key, given in body.items() if given is not None}
    added = dict(defaults.fields)
    if _BOUNDS & body.keys():
        added.pop("max_tokens", None)
    if defaults.constraint is not None and not _CONSTRAINTS & body.keys():
        added |= constraint_fields(defaults.constraint) | defaults.options
    if defaults.seed is not None:
        added["seed"] = derive_seed(defaults.seed, number)
    body = added | body
    if body.get("stream"):
        raise InvalidRequest("a line of a batch cannot be streamed", param="stream")
    if not is_openai and body.get("n", 1) != 1:
        raise InvalidRequest("n is 1 here; OpenAI's batch lines take more", param="n")
    return Ask(path, body)


def constraint_fields(constraint: Constraint) -> Body:
    """The fields of a body that ask for `constraint`."""
    if constraint.kind == "json_schema":
        form = {"name": "answer", "schema": json.loads(constraint.value)}
        return {"response_format": {"type": "json_schema", "json_schema": form}}
    is_list = constraint.kind == "choice"
    return {constraint.kind: json.loads(constraint.value) if is_list else constraint.value}


def _openai(value: Body) -> tuple[str, Body]:
    unknown = value.keys() - {"custom_id", "method", "url", "body"}
    if unknown:
        name = min(unknown)
        raise InvalidRequest(f"unknown field {name}", param=name, code="unknown_parameter")
    if not isinstance(value.get("custom_id"), str):
        raise InvalidRequest("custom_id is a text", param="custom_id")
    if value.get("method", "POST") != "POST":
        raise InvalidRequest("method is POST", param="method")
    if value.get("url") not in (CHAT, COMPLETIONS):
        raise InvalidRequest(f"url is {CHAT} or {COMPLETIONS}", param="url")
    if not isinstance(value["body"], dict):
        raise InvalidRequest("body is an object", param="body")
    return value["url"], value["body"]


def _simple(value: Body, template: str, has_chat: bool) -> tuple[str, Body]:
    asked = {"prompt", "messages"} & value.keys()
    if len(asked) + ("text" in value) > 1:
        raise InvalidRequest("a line has one of prompt, messages and text", param="prompt")
    if not isinstance(value.get("id", 0), str | int):
        raise InvalidRequest("id is a text or a whole number", param="id")
    body = {name: given for name, given in value.items() if name != "id"}
    if "prompt" in asked:
        return COMPLETIONS, body
    if "messages" in asked:
        return CHAT, body
    if "text" not in value and template == TEMPLATE:
        raise InvalidRequest("a line has one of prompt, messages and text", param="prompt")
    prompt = PLACE.sub(lambda place: _filled(value, place[1]), template)
    if has_chat:
        return CHAT, {"messages": [{"role": "user", "content": prompt}]}
    return COMPLETIONS, {"prompt": prompt}


def _filled(record: Body, name: str) -> str:
    if record.get(name) is None:
        raise InvalidRequest(f"the prompt template needs the field {name}", param=name)
    given = record[name]
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
