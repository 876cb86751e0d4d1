"""The many ways in which OpenAI bodies bind an output.

Owns: response_format, the fields that other servers added, what each of them means. Must not know:
one endpoint, whether a constraint can be enforced.

`strict: false` is enforced like true: a reply that satisfies the schema is what either asks for.
"""

from __future__ import annotations

from typing import Any

import msgspec

from radixserve.api.openai.schema import Sampled
from radixserve.errors import InvalidRequest
from radixserve.native.constraint import Value, Wish, telling_fields, wish
from radixserve.native.fields import Name, read
from radixserve.wire.params import ConstraintKind, Whitespace

Asked = dict[str, tuple[ConstraintKind, Value]]

# Ours and vLLM's older names.
_FIELDS: dict[str, ConstraintKind] = {
    "regex": "regex",
    "ebnf": "ebnf",
    "choice": "choice",
    "structural_tag": "structural_tag",
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "ebnf",
}
# vLLM's newer names, inside of structured_outputs.
_STRUCTURED: dict[str, ConstraintKind] = {
    "json": "json_schema",
    "regex": "regex",
    "choice": "choice",
    "grammar": "ebnf",
    "json_object": "json_object",
    "structural_tag": "structural_tag",
}
# Blanks are bounded and nothing falls back here, whatever these say.
_STRUCTURED_REFUSED: dict[str, tuple[Any, ...]] = {
    "disable_any_whitespace": (True, False),
    "disable_fallback": (True, False),
    "disable_additional_properties": (False,),
    "whitespace_pattern": (),
}


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """At most one of the kinds; json: a schema, as text or as itself."""

    json: str | dict[str, Any] | bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | dict[str, Any] | None = None
    whitespace: Whitespace = "fixed"


class _Format(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """schema: beside json_object, as clients of other servers send it."""

    type: str
    json_schema: dict[str, Any] | None = None
    schema: dict[str, Any] | bool | None = None


class _Schema(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """schema: an object or a boolean. name, description, strict: taken; they change nothing."""

    schema: dict[str, Any] | bool
    name: Name = ""
    description: str = ""
    strict: bool | None = None


def wish_of(given: Sampled) -> Wish | None:
    """What the outputs are to be bound to. Raises InvalidRequest naming the field, or both fields
    of a conflict."""
    asked = _response_format(given.response_format)
    asked |= {name: (kind, getattr(given, name)) for name, kind in _FIELDS.items()}
    structured = StructuredOutputs()
    if given.structured_outputs is not None:
        at = "structured_outputs"
        structured = read(
            StructuredOutputs, given.structured_outputs, refused=_STRUCTURED_REFUSED, at=at
        )
        asked |= {f"{at}.{n}": (kind, getattr(structured, n)) for n, kind in _STRUCTURED.items()}
    found = wish(
        asked,
        whitespace=given.whitespace if structured.whitespace == "fixed" else structured.whitespace,
        mode=given.constraint_mode,
        limit=output_limit(given),
    )
    return telling_fields(found, given.field_logprobs)


def output_limit(given: Sampled) -> str:
    """What the client calls the bound of its output."""
    return "max_tokens" if given.max_completion_tokens is None else "max_completion_tokens"


def _response_format(raw: dict[str, Any] | None) -> Asked:
    if raw is None:
        return {}
    if raw.get("type") == "structural_tag":
        return {"response_format": ("structural_tag", raw)}
    given = read(_Format, raw, at="response_format")
    if given.type not in ("text", "json_object", "json_schema"):
        raise InvalidRequest(
            f"response_format.type is text, json_object, json_schema or structural_tag, "
            f"not {given.type!a}",
            param="response_format.type",
        )
    if (given.json_schema is None) == (given.type == "json_schema"):
        raise _misplaced("json_schema", given)
    if given.schema is not None and given.type != "json_object":
        raise _misplaced("schema", given)
    if given.json_schema is not None:
        inner = read(_Schema, given.json_schema, at="response_format.json_schema")
        return {"response_format": ("json_schema", inner.schema)}
    if given.schema is not None:
        return {"response_format": ("json_schema", given.schema)}
    return {"response_format": ("json_object", given.type == "json_object")}


def _misplaced(name: str, given: _Format) -> InvalidRequest:
    has = "needs" if getattr(given, name) is None else "has no use for"
    return InvalidRequest(
        f"response_format of type {given.type} {has} {name}", param=f"response_format.{name}"
    )
