"""The child process that validates texts: python -m radixserve.native.validator.

Owns: one question at a time, a line of JSON on standard input, answered by one on standard output.
A question may say how many `seconds` of work it is worth; one that takes more is answered by
`late`. Must not know: requests. It ends at the end of its input, or after IDLE seconds without a
question.

The draft is the one that `$schema` names, else the newest of 2020-12, 7 and 4 that can read the
schema. There `nullable` and `dependencies`, which older or neighbouring dialects write, mean what
they mean in those. References outside the schema are never fetched.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import re
import resource
import select
import signal
import sys
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import jsonschema
import referencing
import referencing.exceptions
from jsonschema.protocols import Validator

from radixserve.grammar.formats import PATTERNS

IDLE = 60.0
MEMORY_BYTES = 1024**3
MAX_VIOLATIONS = 100
MAX_SAID = 500  # characters of one message

Said = dict[str, str]


class _Late(BaseException):
    """The seconds are over. Matching a pattern is interrupted too; nothing in between takes it for
    a fault of the schema."""


def violations(schema: str, text: str) -> list[Said]:
    """What of `schema` `text` breaks: pointer, keyword and message of each."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return [_said("", "", f"the reply is not JSON: {error}")]
    try:
        errors = itertools.islice(_validator(json.loads(schema)).iter_errors(value), MAX_VIOLATIONS)
        return [
            _said(_pointer(error.absolute_path), str(error.validator), error.message)
            for error in errors
        ]
    except (ValueError, TypeError, RecursionError, re.error) as error:
        return [_said("", "", f"not validated: {error or type(error).__name__}")]
    except referencing.exceptions.Unresolvable as error:
        return [_said("", "$ref", f"not validated: nothing found at {error.ref!r}")]


def fault_of(schema: str) -> str | None:
    """Why `schema` cannot be used; None where it can."""
    try:
        _validator(json.loads(schema))
    except (ValueError, RecursionError) as error:
        return str(error)[:MAX_SAID] or type(error).__name__
    return None


def _nullable(original: Any) -> Any:
    def keyword(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterable[Any]:
        if instance is None and schema.get("nullable") is True:
            return ()
        return original(validator, wanted, instance, schema) or ()

    return keyword


_NEWEST = jsonschema.validators.extend(  # type: ignore[no-untyped-call]
    jsonschema.Draft202012Validator,
    {
        "type": _nullable(jsonschema.Draft202012Validator.VALIDATORS["type"]),
        "enum": _nullable(jsonschema.Draft202012Validator.VALIDATORS["enum"]),
        "dependencies": jsonschema.Draft7Validator.VALIDATORS["dependencies"],
    },
)


def _multiple_of(validator: Any, divisor: Any, instance: Any, _schema: Any) -> Iterable[Any]:
    if not validator.is_type(instance, "number"):
        return
    is_bounded = isinstance(instance, int) or math.isfinite(instance)
    if not is_bounded or _as_written(instance) % _as_written(divisor):
        yield jsonschema.ValidationError(f"{instance!r} is not a multiple of {divisor!r}")


def _as_written(number: float) -> Fraction:
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))


@functools.cache
def _exact(draft: Any) -> Any:
    """The draft with decimal arithmetic: in floats 0.58 is no multiple of 0.01, and what is
    generated for `multipleOf` would be told off."""
    ours = {"multipleOf": _multiple_of} if "multipleOf" in draft.VALIDATORS else {}
    return jsonschema.validators.extend(draft, ours)  # type: ignore[no-untyped-call]


_DRAFTS = (_NEWEST, jsonschema.Draft7Validator, jsonschema.Draft4Validator)


def _validator(schema: Any) -> Validator:
    """Raises ValueError where no draft reads the schema."""
    named = isinstance(schema, dict) and isinstance(schema.get("$schema"), str)
    known = jsonschema.validators.validator_for(schema, default=_NEWEST) if named else _NEWEST
    why = ""
    for draft in _DRAFTS if known is _NEWEST else (known,):
        try:
            draft.check_schema(schema)
        except jsonschema.SchemaError as error:
            why = why or f"{error.message} at #{_pointer(error.absolute_path)}"
            continue
        checks, registry = _formats(draft), referencing.Registry()
        found: Validator = _exact(draft)(schema, format_checker=checks, registry=registry)
        return found
    raise ValueError(why)


def _formats(draft: Any) -> jsonschema.FormatChecker:
    """The draft's checks, and ours for formats whose library is not installed."""
    checker = jsonschema.FormatChecker(formats=())
    checker.checkers = dict(draft.FORMAT_CHECKER.checkers)
    for name, pattern in PATTERNS.items():
        if name not in checker.checkers:
            checker.checkers[name] = (_matching(pattern), ())
    return checker


def _matching(pattern: str) -> Any:
    whole = re.compile(pattern)
    return lambda value: not isinstance(value, str) or whole.fullmatch(value) is not None


def _pointer(path: Iterable[str | int]) -> str:
    steps = (str(step).replace("~", "~0").replace("/", "~1") for step in path)
    return "".join(f"/{step}" for step in steps)


def _said(pointer: str, keyword: str, message: str) -> Said:
    short = message if len(message) <= MAX_SAID else message[:MAX_SAID] + ".."
    return {"pointer": pointer, "keyword": keyword, "message": short}


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    if "text" in question:
        return {"violations": violations(question["schema"], question["text"])}
    return {"fault": fault_of(question["schema"])}


def main() -> None:
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGPROF, _is_late)
    answer: dict[str, Any] = {"ready": True}
    while True:
        out.write(json.dumps(answer).encode() + b"\n")
        out.flush()
        if not select.select([sys.stdin], [], [], IDLE)[0]:
            return
        line = sys.stdin.buffer.readline()
        if not line.endswith(b"\n"):
            return
        question = json.loads(line)
        try:
            signal.setitimer(signal.ITIMER_PROF, question.get("seconds", 0))
            answer = _answer(question)
            signal.setitimer(signal.ITIMER_PROF, 0)
        except _Late:
            answer = {"late": True}


def _is_late(_signal: int, _frame: object) -> None:
    raise _Late


if __name__ == "__main__":
    main()
