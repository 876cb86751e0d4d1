"""The one request that every dialect of messages makes.

Owns: from messages, tools and sampling, however a client wrote them, to what the gateway is asked
and how its text is heard. Must not know: any dialect's fields and shapes, HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from radixserve.api.turns.reasoning import Thoughts, reasoning_of, variables_of
from radixserve.chunks import Request
from radixserve.errors import InvalidRequest
from radixserve.native import bound
from radixserve.native.calls import Calls, Door, Numbered, new_rid, room_of
from radixserve.native.constraint import Wish
from radixserve.native.fields import Name, Seconds
from radixserve.native.hearing import Hearing, hearing_of
from radixserve.native.request import check_rid, namespace, program_ref
from radixserve.native.tool_wish import is_marked, tool_wish
from radixserve.native.toolbox import Toolbox
from radixserve.text.tokenizer import Tokenizer
from radixserve.text.tool_calls import Syntax
from radixserve.wire.params import SamplingParams


class Labelled(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Our fields beside those of any dialect; see the native one for what they mean."""

    priority: int = 0
    timeout_s: Seconds | None = None
    cache_salt: Name = ""
    rid: str = ""
    program: dict[str, Any] | None = None
    explain_cache: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """messages: checked, in the shape that chat templates take: role, content, tool_calls,
    tool_call_id. limit: what the client calls the bound of its output. box: what an output may
    call. answer: what it is bound to where it calls nothing. best, shows_special, keeps_stop: see
    Request. add_generation_prompt, continue_final_message, variables: see ChatTemplate.render.
    thoughts: what is wished of the reasoning.
    """

    messages: list[dict[str, Any]]
    params: SamplingParams
    limit: str
    labels: Labelled
    box: Toolbox = field(default_factory=Toolbox)
    answer: Wish | None = None
    best: int | None = None
    shows_special: bool = False
    keeps_stop: bool = False
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    variables: dict[str, Any] = field(default_factory=dict)
    thoughts: Thoughts = field(default_factory=Thoughts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """An Ask, checked and tokenised. wish: what all outputs are to be bound to."""

    request: Request
    wish: Wish | None
    tokenizer: Tokenizer
    syntax: Syntax
    names: frozenset[str]
    is_marked: bool
    separates: bool = True

    def hearing(self) -> Hearing:
        """A fresh one, for one output."""
        return hearing_of(
            self.syntax,
            self.names,
            self.request.reasoning,
            is_marked=self.is_marked,
            is_bound=bool(self.wish),
            separates=self.separates,
        )

    def start(self, calls: Calls, *, whole: bool = False) -> Numbered:
        """See bound.start."""
        return bound.start(calls, [self.request], self.request.rid, [self.wish], whole=whole)


def prepare(ask: Ask, gateway: Door) -> Asked:
    """Check, render and tokenise. Takes time in the length of the text: call in a thread.

    Raises InvalidRequest naming the field at fault.
    """
    renderer, labels, box = gateway.renderer, ask.labels, ask.box
    syntax = renderer.speech.syntax
    wish = tool_wish(box, ask.answer, syntax, ask.limit)
    rid = labels.rid or new_rid()
    check_rid(rid)
    prompt = prompt_of(ask, gateway, room_of(gateway))
    request = Request(
        prompt=prompt,
        params=ask.params,
        rid=rid,
        output_logprobs=ask.best,
        namespace=namespace(labels.cache_salt),
        priority=labels.priority,
        timeout_s=labels.timeout_s,
        program=program_ref(labels.program),
        explain_cache=labels.explain_cache,
        shows_special=ask.shows_special,
        keeps_stop=ask.keeps_stop,
        reasoning=reasoning_of(ask.thoughts, renderer, prompt, _begun(ask)),
    )
    return Asked(
        request=request,
        wish=wish,
        tokenizer=renderer.tokenizer,
        syntax=syntax,
        names=box.names,
        is_marked=is_marked(box, ask.answer),
        separates=ask.thoughts.separates,
    )


def _begun(ask: Ask) -> str | None:
    """What the answer that is to go on has so far."""
    content = ask.messages[-1].get("content") if ask.continue_final_message else None
    return content if isinstance(content, str) else None


def prompt_of(ask: Ask, gateway: Door, limit: int | None) -> bytes:
    """The ids of its messages and tools: int32, little-endian. limit: see Renderer.encode_text.
    Raises InvalidRequest, ContextTooLong."""
    ids = gateway.renderer.encode_messages(
        ask.messages,
        limit,
        add_generation_prompt=ask.add_generation_prompt,
        continue_final_message=ask.continue_final_message,
        tools=list(ask.box.shown) or None,
        **variables_of(ask.thoughts, ask.variables, gateway.renderer),
    )
    if not len(ids):
        raise InvalidRequest("the messages give an empty prompt", param="messages")
    return ids.astype("<i4").tobytes()
