"""Everything that turns words into ids and back, for one model, in one object.

Owns: the tokenizer and the chat template of the served model. Must not know: HTTP, the engine.
Calls may come from several threads; encoding frees the GIL, so long texts belong in one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from radixserve.config.schema import TextConfig
from radixserve.errors import ContextTooLong, InvalidRequest
from radixserve.text.chat import ChatTemplate, Messages
from radixserve.text.conversation import normalise
from radixserve.text.incremental import Detokenizer
from radixserve.text.load import read_files
from radixserve.text.parts import EncodedPrompt, encode_parts
from radixserve.text.reasoning import DESCRIPTION, TAG_TEXTS, thinking_of
from radixserve.text.reasoning_tokens import ReasoningTokens
from radixserve.text.tokenizer import IdArray, Run, Tokenizer
from radixserve.text.tool_calls import MARKS, speech_of
from radixserve.text.tool_calls_prompt import described, told
from radixserve.weights.source import ModelSource


class Renderer:
    """tokenizer, chat: the two that do the work. eos_ids: end tokens that the tokenizer, the
    generation_config or the end of the template's assistant block name (the caller adds those of
    the model's config). speech: how the model is told of tools, and how it calls them. reasoning:
    the tags in which it reasons, None for a model that does not. marks: the tokens that mark its
    calls, with their texts."""

    def __init__(self, tokenizer: Tokenizer, chat: ChatTemplate, config: TextConfig) -> None:
        self.tokenizer = tokenizer
        self.chat = chat
        self.eos_ids = tokenizer.eos_ids | _end_of_turn(tokenizer, chat)
        self.speech = speech_of(chat.tool_text, config.tool_parser)
        thinking = thinking_of(
            chat.tool_text,
            [tag for tag in TAG_TEXTS if tokenizer.id_of(tag) is not None],
            config.reasoning_parser,
        )
        self.reasoning = None if thinking is None else ReasoningTokens(thinking, tokenizer)
        ids = {mark: tokenizer.id_of(mark) for mark in MARKS}
        self.marks = {token: mark.encode() for mark, token in ids.items() if token is not None}
        self._max_prompt_tokens = config.max_prompt_tokens

    @classmethod
    def load(cls, source: ModelSource, config: TextConfig) -> Renderer:
        """Read tokenizer and template of `source`. Raises ModelLoadError, or ConfigError for a
        chat_template that cannot be used."""
        files = read_files(source)
        return cls(Tokenizer(files), ChatTemplate.load(files, config.chat_template), config)

    def encode_text(self, text: str, *, limit: int | None = None) -> IdArray:
        """Ids of a whole prompt written as text: [n] int32; control tokens in it are tokens.

        limit: tokens that the model has room for; of a text that cannot fit, nothing is tokenised.
        Raises InvalidRequest for lone surrogates, ContextTooLong past max_prompt_tokens and where
        that is so.
        """
        runs = (Run(text, special=True),)
        return self._bounded(
            self.tokenizer.encode_runs(runs, opens=True, limit=self._smaller(limit))
        )

    def encode_messages(
        self,
        messages: Messages,
        limit: int | None = None,
        /,
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        **variables: Any,
    ) -> IdArray:
        """Ids of a conversation: [n] int32; see ChatTemplate.encode. variables: more of them for
        the template. limit: see encode_text. Raises InvalidRequest, ContextTooLong.

        A model that is to be told how to reason is told here, and the prompt ends with the begin
        tag, unless the variable enable_thinking is false.
        """
        messages, tools = self.shown(messages, tools)
        is_told = self._is_told(variables)
        if is_told:
            messages = described(normalise(messages), DESCRIPTION)
        ids = self.chat.encode(
            messages,
            self.tokenizer,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            variables=variables,
            limit=self._smaller(limit),
        )
        prompts = not continue_final_message and add_generation_prompt is not False
        if is_told and prompts and self.reasoning is not None:
            ids = self.reasoning.opened(ids)
        return self._bounded(ids)

    def _is_told(self, variables: Mapping[str, Any]) -> bool:
        reasoning = self.reasoning
        if reasoning is None or not reasoning.thinking.is_described:
            return False
        return variables.get("enable_thinking") is not False

    def shown(
        self, messages: Messages, tools: list[dict[str, Any]] | None
    ) -> tuple[Messages, list[dict[str, Any]] | None]:
        """Messages and tools as the chat template is to have them: where it shows no tools, they
        are told in messages. Raises InvalidRequest."""
        if not self.speech.is_described:
            return messages, tools
        return told(normalise(messages), tools or (), self.speech.syntax), None

    def encode_parts(
        self,
        parts: Sequence[Mapping[str, Any]],
        *,
        param: str = "parts",
        limit: int | None = None,
    ) -> EncodedPrompt:
        """The prompt of a program's call, see parts.py. limit: see encode_text. Raises
        InvalidRequest, ContextTooLong."""
        most = self._smaller(limit)
        prompt = encode_parts(
            parts, self.tokenizer, self.chat, speech=self.speech, param=param, limit=most
        )
        self._bounded(prompt.ids)
        return prompt

    def spell(self, token: int) -> bytes:
        """The bytes of a token, control tokens spelled."""
        return self.tokenizer.bytes_of(token, skip_special=False)

    def detokenizer(
        self,
        stops: tuple[bytes, ...] = (),
        *,
        skip_special: bool = True,
        keep_stop: bool = False,
        spelt: frozenset[int] = frozenset(),
    ) -> Detokenizer:
        """A fresh one, for one output; stops are UTF-8."""
        return Detokenizer(
            self.tokenizer.token_bytes,
            self.tokenizer.special_bytes,
            stops=stops,
            skip_special=skip_special,
            keep_stop=keep_stop,
            spelt=spelt,
        )

    def _smaller(self, limit: int | None) -> int | None:
        return min(filter(None, (limit, self._max_prompt_tokens)), default=None)

    def _bounded(self, ids: IdArray) -> IdArray:
        limit = self._max_prompt_tokens
        if limit and len(ids) > limit:
            raise ContextTooLong(f"the prompt has {len(ids)} tokens, at most {limit} are allowed")
        return ids


def _end_of_turn(tokenizer: Tokenizer, chat: ChatTemplate) -> frozenset[int]:
    """The control token with which the template closes an assistant block, if it is one."""
    if not chat.available:
        return frozenset()
    try:
        close = chat.role_text(("user",), "assistant").close
    except InvalidRequest:
        return frozenset()
    pieces = tokenizer.split_control(close)
    if not pieces or not pieces[0][1]:
        return frozenset()
    return frozenset(tokenizer.encode(pieces[0][0], opens=False, special=True, bos=False).tolist())
