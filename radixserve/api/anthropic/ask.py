"""From a Messages body to the one request of all dialects.

Owns: what the fields ask for together, the format of an answer. Must not know: HTTP, replies.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from radixserve.api.anthropic.conversation import conversation_of
from radixserve.api.anthropic.schema import (
    MessagesRequest,
    Told,
    read_count,
    read_messages,
    sampling_params,
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
# How much is written is what max_tokens and the prompt say; "high" is what that API does unasked.
REFUSED_OUTPUT: dict[str, tuple[Any, ...]] = {"effort": ("high",)}


class _Output(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: dict[str, Any] | None = None


class _Format(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


def message_asked(body: object, gateway: Door) -> tuple[MessagesRequest, Asked]:
    """Takes time in the length of the body: call in a thread.

    Raises InvalidRequest naming the field at fault, NotFound for another model.
    """
    given = read_messages(body)
    check_model(given.model, gateway)
    return given, prepare(_ask(given, sampling_params(given), given), gateway)


def count_tokens(body: object, gateway: Door) -> int:
    """Tokens of the prompt that the body makes; of one that is too long too. Time and errors as
    for message_asked."""
    given = read_count(body)
    check_model(given.model, gateway)
    ask = _ask(given, SamplingParams(), Labelled())
    return len(prompt_of(ask, gateway, None)) // 4


def _ask(given: Told, params: SamplingParams, labels: Labelled) -> Ask:
    conversation = conversation_of(given.system, given.messages)
    answer = _answer(given)
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
    )


def _answer(given: Told) -> Wish | None:
    """What an answer is bound to, by either of two names for one thing."""
    output = read(_Output, given.output_config or {}, at="output_config", refused=REFUSED_OUTPUT)
    formats = {"output_config.format": output.format, "output_format": given.output_format}
    asked: dict[str, tuple[ConstraintKind, Value]] = {
        name: ("json_schema", read(_Format, raw, at=name).schema)
        for name, raw in formats.items()
        if raw is not None
    }
    return wish(asked, whitespace="fixed", mode="enforce", limit=LIMIT)
