"""A backend on any endpoint that speaks OpenAI's dialect: chat, or completions.

Owns: the fields of that dialect. The state stays text, since the endpoint tells no ids. What it
cannot do raises Unsupported, naming it, before anything is sent. Must not know: programs, sockets.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any

from radixserve.lang.backends import foreign, foreign_tools
from radixserve.lang.backends.base import Body, Reply
from radixserve.lang.backends.openai_replies import Growing, read_choices, read_reply
from radixserve.lang.backends.transport import Transport, envelope_error
from radixserve.lang.errors import Unsupported

_SAME = ("temperature", "top_p", "n", "stop", "frequency_penalty", "presence_penalty")
_RENAMED = {"sampling_seed": "seed", "logit_bias": "logit_bias"}
# What vLLM, SGLang and radixserve take beside OpenAI's own fields.
_EXTRAS = {
    "top_k": "top_k",
    "min_p": "min_p",
    "min_new_tokens": "min_tokens",
    "ignore_eos": "ignore_eos",
    "stop_token_ids": "stop_token_ids",
    "stop_regex": "stop_regex",
    "regex": "regex",
    "ebnf": "ebnf",
    "structural_tag": "structural_tag",
    "choice": "guided_choice",
}


class OpenAI:
    """model_name: as the endpoint calls it. is_chat_model: chat completions, else completions.

    extras: the endpoint takes more than OpenAI's does (top_k, regex, text before an assistant's
    output, ..), as vLLM, SGLang and radixserve do. headers: sent with every request.
    """

    def __init__(
        self,
        model_name: str,
        is_chat_model: bool = True,
        *,
        base_url: str = "https://api.openai.com/v1",
        api_key: str | None = None,
        extras: bool = False,
        headers: Mapping[str, str] | None = None,
        timeout: float = 600.0,
    ) -> None:
        self._model = model_name
        self._is_chat = is_chat_model
        self._extras = extras
        self._name = f"the {'chat' if is_chat_model else 'completions'} endpoint of {model_name}"
        key = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = Transport(base_url, {**key, **(headers or {})}, timeout)
        self._path = "/chat/completions" if is_chat_model else "/completions"

    def generate(self, body: Body) -> Reply | list[Reply]:
        return read_reply(body, self._http.ask("POST", self._path, self._request(body)))

    async def agenerate(self, body: Body) -> Reply | list[Reply]:
        return read_reply(body, await self._http.aask("POST", self._path, self._request(body)))

    def stream(self, body: Body) -> Iterator[Reply]:
        growing = Growing(body)
        for data in self._http.events(self._path, self._request(body)):
            yield from growing.take(_event(data))
        yield growing.last()

    async def astream(self, body: Body) -> AsyncGenerator[Reply, None]:
        growing = Growing(body)
        events = self._http.aevents(self._path, self._request(body))
        async with contextlib.aclosing(events):
            async for data in events:
                for chunk in growing.take(_event(data)):
                    yield chunk
        yield growing.last()

    def choose(self, body: Body) -> Reply:
        return read_choices(body, self._http.ask("POST", self._path, self._scoring(body)))

    async def achoose(self, body: Body) -> Reply:
        return read_choices(body, await self._http.aask("POST", self._path, self._scoring(body)))

    def abort(self, rid: str) -> None:
        """Nothing: such an endpoint ends a call when its connection closes."""

    def flush_cache(self) -> None:
        raise Unsupported(f"{self._name} has no cache to flush")

    def get_server_info(self) -> dict[str, Any]:
        """The endpoint's list of models."""
        return dict(self._http.ask("GET", "/models"))

    def close(self) -> None:
        self._http.close()

    async def aclose(self) -> None:
        """Close the connections that the running loop has used."""
        await self._http.aclose()

    def _request(self, body: Body) -> dict[str, Any]:
        foreign.refuse_scores(body, self._name)
        rest = foreign.asked(body)
        request = self._prompt(body)
        limit = rest.pop("max_new_tokens", 128)
        request["max_completion_tokens" if self._is_chat else "max_tokens"] = limit
        request |= {name: rest.pop(name) for name in _SAME if name in rest}
        request |= {to: rest.pop(name) for name, to in _RENAMED.items() if name in rest}
        request |= self._format(rest) | self._logprobs(rest)
        if self._extras:
            request |= {to: rest.pop(name) for name, to in _EXTRAS.items() if name in rest}
        hint = "" if self._extras else "; if the endpoint takes it, say OpenAI(.., extras=True)"
        foreign.refuse_rest(rest, self._name, hint)
        if body["stream"]:
            request |= {"stream": True, "stream_options": {"include_usage": True}}
        return request

    def _prompt(self, body: Body) -> dict[str, Any]:
        if not self._is_chat:
            foreign_tools.refuse_tools(body, self._name)
            return {"model": self._model, "prompt": foreign.plain_text(body["input"], self._name)}
        told = foreign.conversation(body["input"], self._name)
        request: dict[str, Any] = {"model": self._model, "messages": told.messages}
        request |= foreign_tools.openai_fields(body)
        if told.text:
            if not self._extras:
                raise Unsupported(
                    f"{self._name} begins its own messages: it cannot go on from {told.text[:40]!r}"
                )
            begun = {"role": "assistant", "content": told.text}
            request["messages"] = [*told.messages, begun]
            request |= {"continue_final_message": True, "add_generation_prompt": False}
        return request

    def _format(self, rest: dict[str, Any]) -> dict[str, Any]:
        schema = rest.pop("json_schema", None)
        if rest.pop("json_object", False):
            return {"response_format": {"type": "json_object"}}
        if schema is None:
            return {}
        parsed = json.loads(schema) if isinstance(schema, str) else schema
        named = {"name": "output", "schema": parsed, "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": named}}

    def _logprobs(self, rest: dict[str, Any]) -> dict[str, Any]:
        top = rest.pop("top_logprobs_num", 0)
        if not rest.pop("return_logprob", False):
            return {}
        if not self._is_chat:
            return {"logprobs": top}
        return {"logprobs": True} | ({"top_logprobs": top} if top else {})

    def _scoring(self, body: Body) -> dict[str, Any]:
        """The prompt alone, with each choice, and each choice alone where that is asked for."""
        if self._is_chat:
            raise Unsupported(
                f"{self._name} scores no text that it is given, so it cannot select(); "
                "gen(choice=[..]) or a completions endpoint can"
            )
        *parts, wanted = body["input"]
        prompt = foreign.plain_text(parts, self._name)
        prompts = [prompt, *(prompt + choice for choice in wanted["choices"])]
        if wanted["unconditional"]:
            prompts += wanted["choices"]
        return {
            "model": self._model,
            "prompt": prompts,
            "max_tokens": 0,
            "echo": True,
            "logprobs": 0,
            "temperature": 0,
        }


def _event(data: str) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(data)
    if event.get("error"):
        raise envelope_error(500, event["error"])
    return event
