"""What an output that may call tools is bound to.

Owns: one constraint for calls and answers, and the client's names for what is wrong in it. Must
not know: how a grammar is made, replies.
"""

from __future__ import annotations

import json
from typing import Any

from radixserve.errors import InvalidRequest
from radixserve.native.constraint import Wish
from radixserve.native.toolbox import Toolbox
from radixserve.text.tool_calls import Syntax
from radixserve.wire.params import Constraint, Writing

Format = dict[str, Any]


def tool_wish(box: Toolbox, answer: Wish | None, syntax: Syntax, limit: str) -> Wish | None:
    """The wish for an output that calls tools of `box`, or else is `answer`, or text for None.

    limit: the client's name of the output limit. Raises InvalidRequest for what the syntax of the
    model's calls cannot be bound to, and where an answer might be taken for a call.
    """
    if not box.shown:
        return answer
    if box.mode == "none":
        return answer or _wish(syntax.text(), limit)
    tools = [(tool.name, tool.schema) for tool in box.tools]
    calls = syntax.calls(tools, many=box.many, is_marked=is_marked(box, answer))
    if box.mode == "required":
        _check_answer(answer)
        return _wish(calls, limit, box, "/format", _whitespace(answer))
    if answer is None:
        found, pointer = syntax.text_or(calls)
        return _wish(found, limit, box, f"/format{pointer}")
    _check_answer(answer)
    found = {"type": "or", "elements": [calls, _schema(answer)]}
    pointer = "/format/elements"
    return _wish(found, limit, box, f"{pointer}/0", _whitespace(answer), answer, f"{pointer}/1")


def is_marked(box: Toolbox, answer: Wish | None) -> bool:
    """Whether calls of the output begin so that no JSON can be taken for one."""
    return box.mode == "auto" and answer is not None


def _check_answer(answer: Wish | None) -> None:
    """A text of any other kind might be a call as well."""
    if answer is None:
        return
    if answer.constraint.kind not in ("json_schema", "json_object"):
        raise InvalidRequest(
            f"{answer.field} and tools exclude each other: beside tools an answer is text or JSON",
            param=answer.field,
            code="conflicting_parameters",
        )
    if answer.is_judged:
        raise InvalidRequest(
            "constraint_mode validate and tools exclude each other: a call is no such text",
            param="constraint_mode",
            code="conflicting_parameters",
        )


def _whitespace(answer: Wish | None) -> Writing:
    return "fixed" if answer is None else answer.constraint.whitespace


def _schema(answer: Wish) -> Format:
    try:
        return {"type": "json_schema", "json_schema": json.loads(answer.schema)}
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"{answer.field}: not JSON: {error}", param=answer.field, code="unsupported_schema"
        ) from None


def _wish(
    found: Format,
    limit: str,
    box: Toolbox | None = None,
    calls: str = "",
    whitespace: Writing = "fixed",
    answer: Wish | None = None,
    answer_at: str = "",
) -> Wish:
    """calls, answer_at: pointers to these in `found`."""
    places = [] if answer is None else [(f"{answer_at}/json_schema", answer.field)]
    for i, tool in enumerate(() if box is None else box.tools):
        places.append((f"{calls}/content/tags/{i}/content/json_schema", tool.place))
    try:
        text = json.dumps({"format": found}, ensure_ascii=False, separators=(",", ":"))
        constraint = Constraint(
            kind="structural_tag", value=text, whitespace=whitespace, marks=True
        )
    except InvalidRequest as error:
        raise InvalidRequest(error.message, param="tools", code=error.code) from None
    except RecursionError:
        raise InvalidRequest("the tools are nested too deeply", param="tools") from None
    return Wish(constraint=constraint, field="tools", limit=limit, places=tuple(places))
