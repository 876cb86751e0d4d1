"""rs.Grammar: questions about a constraint that need no model.

Owns: how Python values name a constraint, whether a text is one of its outputs. Must not know:
tokens, requests. Torch and the grammar engine are loaded only for grammars that begin with
themselves.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from radixserve.errors import InvalidRequest
from radixserve.grammar import check, report
from radixserve.grammar.report import Report
from radixserve.grammar.track import Track
from radixserve.wire.params import Constraint, ConstraintKind, Whitespace


class Grammar:
    """A constraint is a JSON Schema (a dict or bool, its JSON text, or a pydantic model class) or,
    by name, a regex, an EBNF grammar, a choice of strings, or a structural tag (a dict or its JSON
    text). Exactly one is given; anything else raises TypeError."""

    @staticmethod
    def check(
        schema: Any = None,
        *,
        regex: str | None = None,
        ebnf: str | None = None,
        choice: Sequence[str] | None = None,
        structural_tag: Any = None,
        whitespace: Whitespace = "fixed",
    ) -> Report:
        """What is enforced, rewritten, ignored or refused, and where. print() shows a table."""
        try:
            constraint = constraint_of(
                schema, regex=regex, ebnf=ebnf, choice=choice, tag=structural_tag, blank=whitespace
            )
        except InvalidRequest as error:
            return report.of_refusal(error)
        return report.explain_constraint(constraint)

    @staticmethod
    def accepts(
        schema: Any = None,
        text: str = "",
        *,
        regex: str | None = None,
        ebnf: str | None = None,
        choice: Sequence[str] | None = None,
        structural_tag: Any = None,
        whitespace: Whitespace = "fixed",
    ) -> bool:
        """Whether `text` is, to its last character, an output that the constraint allows.

        An output is narrower than what validates: fixed blanks, properties in their declared order.
        Raises InvalidRequest for a constraint that is refused.
        """
        constraint = constraint_of(
            schema, regex=regex, ebnf=ebnf, choice=choice, tag=structural_tag, blank=whitespace
        )
        try:
            spelt = text.encode()
        except UnicodeEncodeError:
            return False  # a lone surrogate, which no output holds
        return _reader(check.check(constraint))(spelt)


def constraint_of(
    schema: Any,
    *,
    regex: str | None,
    ebnf: str | None,
    choice: Sequence[str] | None,
    tag: Any,
    blank: Whitespace,
) -> Constraint:
    """The one constraint that is given. Raises TypeError for none or several, InvalidRequest."""
    given: dict[ConstraintKind, str] = {}
    if schema is not None:
        given["json_schema"] = _text_of_schema(schema)
    if regex is not None:
        given["regex"] = regex
    if ebnf is not None:
        given["ebnf"] = ebnf
    if choice is not None:
        given["choice"] = json.dumps(list(choice))
    if tag is not None:
        given["structural_tag"] = tag if isinstance(tag, str) else json.dumps(tag)
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise TypeError(f"give one of schema, regex, ebnf, choice, structural_tag, not {found}")
    kind, value = next(iter(given.items()))
    return Constraint(kind=kind, value=value, whitespace=blank)


def _text_of_schema(schema: Any) -> str:
    if isinstance(schema, str):
        return schema
    of_model = getattr(schema, "model_json_schema", None)
    try:
        return json.dumps(of_model() if of_model is not None else schema, ensure_ascii=False)
    except RecursionError:
        raise InvalidRequest("the schema is nested too deeply", param="json_schema") from None


@lru_cache(maxsize=32)
def _reader(constraint: Constraint) -> Callable[[bytes], bool]:
    grammar = check.grammar(constraint)
    track = Track.of(grammar)
    if track is None:
        return _compiled(constraint)
    lock = threading.Lock()  # a track is for one thread at a time

    def accepts(text: bytes) -> bool:
        with lock:
            state = track.start.walk(text)
        if state is not None and state.lost:
            return _compiled(constraint)(text)
        return state is not None and state.may_end

    return accepts


@lru_cache(maxsize=8)
def _compiled(constraint: Constraint) -> Callable[[bytes], bool]:
    from radixserve.grammar.bytewise import reader  # brings torch

    return reader(check.grammar(constraint))
