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
from radixserve.text.incremental import Detokenizer
from radixserve.text.load import read_files
from radixserve.text.parts import EncodedPrompt, encode_parts
from radixserve.text.tokenizer import IdArray, Tokenizer
from radixserve.weights.source import ModelSource


class Renderer:
    """tokenizer, chat: the two that do the work. eos_ids: end tokens that the tokenizer, the
    generation_config or the end of the template's assistant block name (the caller adds those of
    the model's config)."""

    def __init__(self, tokenizer: Tokenizer, chat: ChatTemplate, config: TextConfig) -> None:
        self.tokenizer = tokenizer
        self.chat = chat
        self.eos_ids = tokenizer.eos_ids | _end_of_turn(tokenizer, chat)
        self._max_prompt_tokens = config.max_prompt_tokens

    @classmethod
    def load(cls, source: ModelSource, config: TextConfig) -> Renderer:
        """Read tokenizer and template of `source`. Raises ModelLoadError, or ConfigError for a
        chat_template that cannot be used."""
        files = read_files(source)
        return cls(Tokenizer(files), ChatTemplate.load(files, config.chat_template), config)

    def encode_text(self, text: str) -> IdArray:
        """Ids of a whole prompt written as text: [n] int32; control tokens in it are tokens.

        Raises InvalidRequest for lone surrogates, ContextTooLong past max_prompt_tokens.
        """
        return self._bounded(self.tokenizer.encode(text, opens=True, special=True))

    def encode_messages(
        self,
        messages: Messages,
        /,
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        **variables: Any,
    ) -> IdArray:
        """Ids of a conversation: [n] int32; see ChatTemplate.encode. variables: more of them for
        the template. Raises InvalidRequest, ContextTooLong."""
        return self._bounded(
            self.chat.encode(
                messages,
                self.tokenizer,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                variables=variables,
            )
        )

    def encode_parts(
        self, parts: Sequence[Mapping[str, Any]], *, param: str = "parts"
    ) -> EncodedPrompt:
        """The prompt of a program's call, see parts.py. Raises InvalidRequest, ContextTooLong."""
        prompt = encode_parts(parts, self.tokenizer, self.chat, param=param)
        self._bounded(prompt.ids)
        return prompt

    def detokenizer(
        self, stops: tuple[bytes, ...] = (), *, skip_special: bool = True, keep_stop: bool = False
    ) -> Detokenizer:
        """A fresh one, for one output; stops are UTF-8."""
        return Detokenizer(
            self.tokenizer.token_bytes,
            self.tokenizer.special_bytes,
            stops=stops,
            skip_special=skip_special,
            keep_stop=keep_stop,
        )

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
