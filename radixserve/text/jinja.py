"""The sandbox that chat templates run in.

Owns: the functions and tags that model templates expect, and the bound on their loops. Must not
know: messages, tokens.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from radixserve.errors import InvalidRequest

MAX_LOOP_STEPS = 1_000_000

# What a template can raise by itself: its own faults (types, missing keys) and its limits.
TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


def compile_template(text: str) -> jinja2.Template:
    """Raises jinja2.TemplateSyntaxError."""
    return _environment().from_string(text)


def run_template(template: jinja2.Template, variables: dict[str, Any]) -> str:
    """Render once. Words of raise_exception() and the template's own faults, among them loops
    over more than MAX_LOOP_STEPS numbers, raise InvalidRequest."""
    try:
        return template.render(variables | {"range": _bounded_range()})
    except _RaisedByTemplate as refusal:
        raise InvalidRequest(refusal.words, param="messages") from None
    except TEMPLATE_ERRORS as error:
        kind = type(error).__name__
        raise InvalidRequest(
            f"the model's chat template cannot render these messages: {kind}: {error}",
            param="messages",
        ) from error


class _RaisedByTemplate(jinja2.TemplateError):
    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.words = words


class _GenerationTag(jinja2.ext.Extension):
    """{% generation %}..{% endgeneration %} marks the model's words for training; here it only
    renders what stands in it."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it as a set)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[jinja2.ext.loopcontrols, _GenerationTag],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _bounded_range() -> Callable[..., range]:
    """range() for one rendering: nested loops draw on one budget."""
    left = MAX_LOOP_STEPS

    def bounded(*limits: int) -> range:
        nonlocal left
        numbers = range(*limits)
        left -= len(numbers)
        if left < 0:
            raise OverflowError(f"loops over more than {MAX_LOOP_STEPS} numbers")
        return numbers

    return bounded


def _raise_exception(message: object) -> None:
    raise _RaisedByTemplate(str(message))


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own filter escapes for HTML, which no model was trained on."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
