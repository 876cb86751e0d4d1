"""What outputs make of variables: texts, objects, turns, and the thoughts before them.

Owns: the value of a gen. Must not know: states, how a call is made.
"""

from __future__ import annotations

from typing import Any

from radixserve.lang.errors import ProgramError, TypedOutputError
from radixserve.lang.ir import Gen
from radixserve.lang.replies import Generated
from radixserve.lang.toolkit import Tool, turn_of


def value_of(op: Gen, output: Generated, tools: tuple[Tool, ...]) -> Any:
    """The text, a Turn of calls of `tools`, or the object that the gen reads. Raises
    TypedOutputError where the text is none."""
    try:
        if op.tools is not None:
            return turn_of(output.text, output.calls, tools, op.read)
        return output.text if op.read is None else op.read(output.text)
    except TypedOutputError as error:
        if output.meta["finish_reason"].get("type") == "length":
            error.add_note("the text was cut short: max_tokens is too small")
        raise


def thoughts_of(of: str, meta: Any) -> Any:
    """The reasoning in the meta information of a gen; a list of n of them for n outputs."""
    if isinstance(meta, list):
        return [thoughts_of(of, each) for each in meta]
    if not isinstance(meta, dict):
        raise ProgramError(f"{of!r} was not generated here, so it has no reasoning")
    return meta.get("reasoning_content") or ""
