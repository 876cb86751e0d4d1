"""From a Messages body to the one request of all dialects.

Owns: what the fields ask for together, the format of an answer. Must not know: HTTP, replies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from radixserve.api.anthropic.conversation import conversation_of
from radixserve.api.anthropic.schema import (
    Told,
    read_count,
    read_messages,
    sampling_params,
)
from radixserve.api.anthropic.thinking import (
    Effort,
    ThinkingConfig,
    thinking_config,
    thoughts_of,
)
from radixserve.api.anthropic.tools import toolbox_of
from radixserve.api.openai.models import check_model
from radixserve.api.turns.ask import Ask, Asked, Labelled, prepare, prompt_of
from radixserve.errors import InvalidRequest
from radixserve.native.calls import Door
from radixserve.native.constraint import Value, Wish, wish
from radixserve.native.fields import read
from radixserve.wire.params import ConstraintKind, SamplingParams

LIMIT = "max_tokens"


class OutputConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """effort: of the reasoning. format: {"type": "json_schema", "schema": ..}."""

    effort: Effort | None = None
    format: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How the answer is to be sent. shows_thinking: with the text of the reasoning."""

    is_streamed: bool
    shows_thinking: bool


class _Format(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


def message_asked(body: object, gateway: Door) -> tuple[Wanted, Asked]:
    """Takes time in the length of the body: call in a thread.

    Raises InvalidRequest naming the field at fault, NotFound for another model.
    """
    given = read_messages(body)
    check_model(given.model, gateway)
    config = thinking_config(given.thinking, given.max_tokens)
    ask = _ask(given, config, sampling_params(given), given)
    shows = config is None or config.display != "omitted"
    return Wanted(is_streamed=given.stream, shows_thinking=shows), prepare(ask, gateway)


def count_tokens(body: object, gateway: Door) -> int:
    """Tokens of the prompt that the body makes; of one that is too long too. Time and errors as
    for message_asked."""
    given = read_count(body)
    check_model(given.model, gateway)
    config = thinking_config(given.thinking, None)
    ask = _ask(given, config, SamplingParams(), Labelled())
    return len(prompt_of(ask, gateway, None)) // 4


def _ask(
    given: Told, config: ThinkingConfig | None, params: SamplingParams, labels: Labelled
) -> Ask:
    conversation = conversation_of(given.system, given.messages)
    output = read(OutputConfig, given.output_config or {}, at="output_config")
    answer = _answer(output, given.output_format)
    if answer is not None and conversation.is_begun:
        raise InvalidRequest(
            f"{answer.field} excludes an answer that has begun: the last message is the "
            "assistant's",
            param=answer.field,
            code="conflicting_parameters",
        )
    return Ask(
        messages=conversation.messages,
        params=params,
        limit=LIMIT,
        labels=labels,
        box=toolbox_of(given),
        answer=answer,
        continue_final_message=conversation.is_begun,
        thoughts=thoughts_of(config, output.effort),
    )


def _answer(output: OutputConfig, output_format: dict[str, Any] | None) -> Wish | None:
    """What an answer is bound to, by either of two names for one thing."""
    formats = {"output_config.format": output.format, "output_format": output_format}
    asked: dict[str, tuple[ConstraintKind, Value]] = {
        name: ("json_schema", read(_Format, raw, at=name).schema)
        for name, raw in formats.items()
        if raw is not None
    }
    return wish(asked, whitespace="fixed", mode="enforce", limit=LIMIT)
