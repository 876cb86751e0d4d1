"""What a client wants its output bound to, as it said so.

Owns: which fields exclude each other, the wire form of their values, the names by which errors
speak of them. Must not know: any dialect's names, whether a constraint can be enforced.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from radixserve.errors import InvalidRequest
from radixserve.grammar.refusal import Unsupported, refused
from radixserve.wire.params import Constraint, ConstraintKind, Whitespace

Mode = Literal["enforce", "validate"]
# What a client may give for a constraint; None and False give none.
Value = str | dict[str, object] | list[str] | bool | None

_SPACED: tuple[ConstraintKind, ...] = ("json_schema", "json_object", "structural_tag")
_JUDGED: tuple[ConstraintKind, ...] = ("json_schema", "json_object")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """constraint: as the client gave it, still to be checked. field, limit: what the client calls
    it and the output limit. is_judged: what cannot be enforced is left out, and the finished text
    is validated. tells_fields: the reply says how sure the model was of each field. places: JSON
    pointers of parts of the constraint, each with what the client calls that part.
    """

    constraint: Constraint
    field: str
    limit: str
    is_judged: bool = False
    tells_fields: bool = False
    places: tuple[tuple[str, str], ...] = ()

    @property
    def schema(self) -> str:
        """The JSON Schema that the output is validated against."""
        if self.constraint.kind == "json_schema":
            return self.constraint.value
        return '{"type": "object"}'

    def renamed(self, error: InvalidRequest) -> InvalidRequest:
        """`error` about this constraint, in the client's words."""
        if error.param == self.constraint.kind:
            for pointer, name in self.places:
                if isinstance(error, Unsupported) and _stands_in(error.pointer, pointer):
                    inner = refused(error.pointer[len(pointer) :], error.keyword, error.why)
                    return InvalidRequest(f"{name}: {inner.message}", param=name, code=error.code)
            return InvalidRequest(error.message, param=self.field, code=error.code)
        if error.param == "max_new_tokens":
            message = error.message.replace("max_new_tokens", self.limit.rpartition(".")[2])
            return InvalidRequest(message, param=self.limit, code=error.code)
        return error


def telling_fields(given: Wish | None, asked: bool, at: str = "") -> Wish | None:
    """`given`, telling of fields where that is asked for. at: before the field's name. Raises
    InvalidRequest where there is nothing that has fields."""
    if not asked:
        return given
    if given is None:
        raise InvalidRequest(
            "field_logprobs tells of an output that is bound, by a schema or by choices",
            param=f"{at}field_logprobs",
        )
    return replace(given, tells_fields=True)


def _stands_in(pointer: str, part: str) -> bool:
    return pointer == part or pointer.startswith(f"{part}/")


def wish(
    given: Mapping[str, tuple[ConstraintKind, Value]],
    *,
    whitespace: Whitespace,
    mode: Mode,
    limit: str,
    at: str = "",
) -> Wish | None:
    """The one constraint among `given`, a map from the client's names; None where there is none.

    limit: the client's name of the output limit. at: what stands before the names of whitespace
    and constraint_mode in errors. Raises InvalidRequest for two, or for options without effect.
    """
    asked = {
        name: (kind, value)
        for name, (kind, value) in given.items()
        if value is not None and (kind, value) != ("json_object", False)
    }
    if len(asked) > 1:
        names = list(asked)
        raise InvalidRequest(
            f"{', '.join(names[:-1])} and {names[-1]} exclude each other: give one",
            param=names[-1],
            code="conflicting_parameters",
        )
    kind = next((kind for kind, _ in asked.values()), None)
    if whitespace != "fixed" and kind not in _SPACED:
        raise _idle("whitespace", _SPACED, at)
    if mode != "enforce" and kind not in _JUDGED:
        raise _idle("constraint_mode", _JUDGED, at)
    for field, (kind, value) in asked.items():
        try:
            constraint = Constraint(kind=kind, value=_text(kind, value), whitespace=whitespace)
        except InvalidRequest as error:
            raise InvalidRequest(error.message, param=field, code=error.code) from None
        return Wish(constraint=constraint, field=field, limit=limit, is_judged=mode == "validate")
    return None


def _text(kind: ConstraintKind, value: Value) -> str:
    if kind == "json_object":
        return ""
    if isinstance(value, str) and kind != "choice":
        return value
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        raise InvalidRequest(f"{kind} is nested too deeply") from None
    except (TypeError, ValueError) as error:  # only a Python caller can send such a value
        raise InvalidRequest(f"{kind} is not JSON: {error}") from None


def _idle(name: str, kinds: tuple[ConstraintKind, ...], at: str) -> InvalidRequest:
    return InvalidRequest(
        f"{name} has an effect only on {', '.join(kinds[:-1])} or {kinds[-1]}",
        param=f"{at}.{name}" if at else name,
    )
