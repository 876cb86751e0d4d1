"""Reading a request's fields strictly, with errors that name the field.

Owns: turning a plain dictionary into a struct, refusing what is not implemented unless it asks
for nothing. Must not know: any one dialect, HTTP.
"""

from __future__ import annotations

import difflib
import functools
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, cast

import msgspec

from radixserve.errors import InvalidRequest

T = TypeVar("T")
Refusals = Mapping[str, tuple[Any, ...]]

# What clients choose and the engine keeps while a request lives, or longer.
Name = Annotated[str, msgspec.Meta(max_length=256)]
Path = Annotated[str, msgspec.Meta(max_length=1024)]

Seconds = Annotated[float, msgspec.Meta(gt=0)]  # read() says what is wrong with others

# Names for one thing, in this dialect or another.
_ALIASES = (
    {"max_new_tokens", "max_tokens", "max_completion_tokens", "max_length", "num_predict"},
    {"min_new_tokens", "min_tokens"},
    {"sampling_seed", "seed", "random_seed"},
    {"stop", "stop_sequences", "stop_strings", "stop_words"},
    {"stop_token_ids", "eos_token_id", "stop_ids"},
    {"n", "best_of", "num_return_sequences"},
    {"repetition_penalty", "repeat_penalty"},
    {"text", "prompt"},
    {"input_ids", "prompt_token_ids", "token_ids"},
    {"return_logprob", "logprobs"},
    {"top_logprobs_num", "top_logprobs"},
    {"sampling_params", "sampling", "parameters"},
    {"rid", "request_id"},
    {"json_schema", "guided_json", "schema", "response_format"},
    {"regex", "guided_regex"},
    {"choice", "guided_choice", "choices"},
    {"ebnf", "guided_grammar", "grammar"},
    {
        "thinking_token_budget",
        "thinking_budget",
        "max_thinking_tokens",
        "max_reasoning_tokens",
        "thinking_budget_tokens",
        "reasoning_budget",
    },
)

_PLACE = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>.*)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>.*)`")
_MISSING = re.compile(r"^Object missing required field `(?P<name>.*)`")
_INT64 = 2**63


def read(kind: type[T], body: object, *, refused: Refusals | None = None, at: str = "") -> T:
    """`body` as a `kind`. null means absent; a whole float may stand for an integer.

    refused: names that are known and not implemented, with their values that ask for nothing;
    those are dropped, others raise. at: where `body` itself stands, before the names in errors.
    Raises InvalidRequest with the path of the field, like `messages[1].role`.
    """
    if not isinstance(body, dict):
        what = at or "the request body"
        raise InvalidRequest(f"{what} must be an object, not {_word(body)}", param=at or None)
    given: dict[str, Any] = {}
    timed = _in_seconds(cast("Any", kind))
    for name, value in body.items():
        if value is None or _dropped(name, value, refused or {}, at):
            continue
        if name in timed:
            given[name] = _seconds(value, _join(at, name))
            continue
        given[name] = int(value) if isinstance(value, float) and value.is_integer() else value
        if isinstance(given[name], int) and not -_INT64 <= given[name] < _INT64:
            raise InvalidRequest(f"{name} does not fit 64 bits", param=_join(at, name))
    try:
        return msgspec.convert(given, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise _named(str(error), at, kind) from None


@functools.cache
def _in_seconds(kind: Any) -> frozenset[str]:
    """Fields of `kind` that are a Seconds or absent."""
    fields = msgspec.structs.fields(kind)
    return frozenset(each.encode_name for each in fields if each.type == Seconds | None)


def _seconds(value: object, path: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            found = float(value)
        except OverflowError:
            found = math.inf
        if 0 < found < math.inf:
            return found
    said = f"{value:g}" if isinstance(value, float) else repr(value)[:64]
    raise InvalidRequest(
        f"{path} must be a finite number of seconds above 0, not {said}", param=path
    )


def _dropped(name: str, value: object, refused: Refusals, at: str) -> bool:
    if name not in refused:
        return False
    # True == 1, so the kinds must agree as well.
    if any(type(value) is type(neutral) and value == neutral for neutral in refused[name]):
        return True
    raise InvalidRequest(
        f"{name} is not supported yet", param=_join(at, name), code="unsupported_parameter"
    )


def _named(message: str, at: str, kind: type) -> InvalidRequest:
    place = _PLACE.search(message)
    path = place["path"] if place else ""
    where = _join(at, path)
    text = message[: place.start()] if place else message
    if unknown := _UNKNOWN.match(text):
        name = _join(where, unknown["name"])
        said = f"unknown field {name}{_meant(unknown['name'], kind)}"
        return InvalidRequest(said, param=name, code="unknown_parameter")
    if missing := _MISSING.match(text):
        name = _join(where, missing["name"])
        return InvalidRequest(f"missing field {name}", param=name, code="missing_parameter")
    return InvalidRequest(f"{where or 'body'}: {text.replace('`', '')}", param=where or None)


def _meant(name: str, kind: type) -> str:
    """A hint at the fields of `kind` that `name` may stand for."""
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    same = [field for names in _ALIASES if name in names for field in known if field in names]
    meant = same or difflib.get_close_matches(name[:64], known, n=1)
    return f"; did you mean {' or '.join(meant)}?" if meant else ""


def _join(at: str, path: str) -> str:
    if not at or not path or path.startswith("["):
        return at + path
    return f"{at}.{path}"


def _word(value: object) -> str:
    match value:
        case None:
            return "null"
        case list():
            return "a list"
        case str():
            return "a string"
        case _:
            return f"a {type(value).__name__}"
