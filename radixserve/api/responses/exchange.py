"""One response as it is asked for: from a body to what the engine is asked.

Owns: the names of sampling parameters and formats in this dialect, the system's first message. Must
not know: HTTP, how a reply looks.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec

from radixserve.api.faults import NotFound
from radixserve.api.openai.chat import RESERVED_VARIABLES
from radixserve.api.responses.items import Item, check_count, new_id, read_items
from radixserve.api.responses.messages import messages_of
from radixserve.api.responses.schema import InputTokensRequest, ResponseRequest, Told
from radixserve.api.responses.store import Owner, ResponseStore
from radixserve.api.responses.tools import toolbox_of
from radixserve.api.turns.ask import Ask, Asked, Labelled, prepare, prompt_of
from radixserve.api.turns.reasoning import SWITCHES, Thoughts
from radixserve.errors import InvalidRequest, RequestError
from radixserve.native.calls import Door
from radixserve.native.constraint import Value, Wish, wish
from radixserve.native.fields import Name, read
from radixserve.wire.params import ConstraintKind, SamplingParams

LIMIT = "max_output_tokens"
GOES_ON = ("completed", "incomplete")  # after a response of such status


class TextConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: dict[str, Any] | None = None


class TextFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """name, description, strict: taken; they change nothing."""

    type: str
    schema: dict[str, Any] | bool | None = None
    name: Name = ""
    description: str = ""
    strict: bool | None = None


class ReasoningConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """effort: see turns/reasoning.py. summary, generate_summary: two names of one thing; there are
    no summaries, reasoning is told whole."""

    effort: str | None = None
    summary: Literal["auto"] | None = None
    generate_summary: Literal["auto"] | None = None


# context: which reasoning of earlier turns is shown again, which the chat template decides.
REFUSED_REASONING: dict[str, tuple[Any, ...]] = {"context": ("auto",), "mode": ("standard",)}
REFUSED_TEXT: dict[str, tuple[Any, ...]] = {"verbosity": ("medium",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """given: the items of its input. store: whether it is to be kept, for `owner`."""

    asked: Asked
    body: ResponseRequest
    given: list[Item]
    owner: Owner
    store: bool
    max_tokens: int
    model: str
    id: str = field(default_factory=lambda: new_id("resp"))
    created: int = field(default_factory=lambda: int(time.time()))


def exchange_of(
    body: ResponseRequest,
    gateway: Door,
    store: ResponseStore,
    owner: Owner,
    default_max_tokens: int,
) -> Exchange:
    """Check, look up, render and tokenise. Takes time in the length of the text: call in a thread.

    Raises InvalidRequest naming the field at fault, NotFound for what is not kept.
    """
    keeps = store.is_on if body.store is None else body.store
    if keeps and not store.is_on:
        raise InvalidRequest(
            "this server keeps no replies (--store-responses); store: false works",
            param="store",
            code="unsupported_parameter",
        )
    given = read_items(body.input, lambda name: store.find(owner, name))
    params = _params(body, default_max_tokens)
    ask = replace(
        _told(
            body, _earlier(body, store, owner), given, _thoughts(body, body.thinking_token_budget)
        ),
        params=params,
        labels=body,
        best=body.best,
    )
    with renamed():
        asked = prepare(ask, gateway)
    return Exchange(
        asked=asked,
        body=body,
        given=given,
        owner=owner,
        store=keeps,
        max_tokens=params.max_new_tokens,
        model=gateway.model_name,
    )


def count_of(body: InputTokensRequest, gateway: Door, store: ResponseStore, owner: Owner) -> int:
    """Tokens of the prompt that the body makes; of one that is too long too. Time and errors as for
    exchange_of."""
    given = read_items(body.input, lambda name: store.find(owner, name))
    ask = _told(body, _earlier(body, store, owner), given, _thoughts(body, None))
    with renamed():
        return len(prompt_of(ask, gateway, None)) // 4


@contextlib.contextmanager
def renamed() -> Generator[None, None, None]:
    """Errors within it speak of the fields of this dialect."""
    try:
        yield
    except RequestError as error:
        param = error.param or ""
        if param.startswith("messages") or param == "prompt":
            error.param = "input"
        raise


def _earlier(body: Told, store: ResponseStore, owner: Owner) -> list[Item]:
    name = body.previous_response_id
    if name is None:
        return []
    kept, items = store.body(owner, name), store.chain(owner, name)
    if kept is None or items is None:
        raise NotFound(
            f"there is no response {name!a:.80}; they are kept for a while, and with store: false "
            f"not at all",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    if kept["status"] not in GOES_ON:
        raise InvalidRequest(
            f"response {name} has {kept['status']}, so none can go on from it",
            param="previous_response_id",
        )
    return items


def _told(body: Told, earlier: list[Item], given: list[Item], thoughts: Thoughts) -> Ask:
    """What decides the prompt, and what its outputs are bound to."""
    check_count(len(earlier) + len(given))
    messages = messages_of(earlier, given)
    if body.instructions is not None:
        messages.insert(0, {"role": "system", "content": body.instructions})
    if not messages:
        raise InvalidRequest("input is empty", param="input")
    reserved = RESERVED_VARIABLES & body.chat_template_kwargs.keys()
    if reserved:
        raise InvalidRequest(
            f"chat_template_kwargs may not set {min(reserved)}", param="chat_template_kwargs"
        )
    return Ask(
        messages=messages,
        params=SamplingParams(),
        limit=LIMIT,
        labels=Labelled(),
        box=toolbox_of(body),
        answer=_answer(body.text),
        variables=body.chat_template_kwargs,
        thoughts=thoughts,
    )


def _thoughts(body: Told, budget: int | None) -> Thoughts:
    given = read(ReasoningConfig, body.reasoning, refused=REFUSED_REASONING, at="reasoning")
    switches = [body.chat_template_kwargs.get(name) for name in SWITCHES]
    return Thoughts(
        budget=budget,
        effort=given.effort,
        is_on=next((switch for switch in switches if isinstance(switch, bool)), None),
        effort_field="reasoning.effort",
    )


def _params(body: ResponseRequest, default_max_tokens: int) -> SamplingParams:
    try:
        return SamplingParams(
            max_new_tokens=body.max_output_tokens or default_max_tokens,
            temperature=body.temperature,
            top_k=body.top_k,
            top_p=body.top_p,
            min_p=body.min_p,
            stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop),
            seed=body.seed,
        )
    except InvalidRequest as error:
        message = error.message.replace("max_new_tokens", LIMIT)
        param = LIMIT if error.param == "max_new_tokens" else error.param
        raise InvalidRequest(message, param=param, code=error.code) from None


def _answer(raw: Mapping[str, Any]) -> Wish | None:
    given = read(TextConfig, dict(raw), refused=REFUSED_TEXT, at="text")
    at = "text.format"
    form = read(TextFormat, given.format or {"type": "text"}, at=at)
    if form.type not in ("text", "json_object", "json_schema"):
        raise InvalidRequest(
            f"{at}.type is text, json_object or json_schema, not {form.type!a:.60}",
            param=f"{at}.type",
        )
    if (form.schema is None) == (form.type == "json_schema"):
        has = "needs" if form.schema is None else "has no use for"
        raise InvalidRequest(f"{at} of type {form.type} {has} schema", param=f"{at}.schema")
    asked: tuple[ConstraintKind, Value] = ("json_object", form.type == "json_object")
    if form.schema is not None:
        asked = ("json_schema", form.schema)
    return wish({at: asked}, whitespace="fixed", mode="enforce", limit=LIMIT)
