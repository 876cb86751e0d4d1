"""POST /tokenize and /detokenize, as vLLM's and SGLang's clients send them.

Owns: their fields and answers. Must not know: HTTP, the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from radixserve.api.openai.chat import read_messages
from radixserve.api.openai.models import check_model
from radixserve.errors import InvalidRequest
from radixserve.native.calls import Door, vocabulary
from radixserve.native.fields import read
from radixserve.native.prompts import ids_bytes, several
from radixserve.text.tokenizer import check_text

Event = dict[str, Any]

REFUSED: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "reasoning_effort": (),
    "chat_template": (),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
}


class TokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Exactly one of prompt and messages. add_special_tokens: what the tokenizer puts in front of a
    prompt; true with a prompt, and never with messages, since the chat template has its own.
    return_token_strs: tell each token's text, too."""

    model: str = ""
    prompt: str | list[str] | None = None
    messages: list[Any] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    return_token_strs: bool = False


class DetokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """tokens: of one text, or a list of those of several."""

    model: str = ""
    tokens: list[Any]
    skip_special_tokens: bool = True


def tokenize(body: object, gateway: Door) -> Event:
    """The ids of a text, of several, or of a conversation. Takes time in the length of the text:
    call in a thread. No length is too long. Raises InvalidRequest naming the field."""
    given = read(TokenizeRequest, body, refused=REFUSED)
    check_model(given.model, gateway)
    match given.prompt, given.messages:
        case None, list(messages):
            rows = [_of_messages(messages, given, gateway)]
        case str(text), None:
            rows = [_of_text(text, given, gateway)]
        case list(texts), None:
            rows = [_of_text(text, given, gateway) for text in several(texts, "prompt")]
        case _:
            raise InvalidRequest("give exactly one of prompt and messages", param="prompt")
    told: Event = {
        "count": [len(row) for row in rows],
        "max_model_len": gateway.info.context_len,
        "tokens": rows,
        "token_strs": None,
    }
    if given.return_token_strs:
        spell = gateway.renderer.tokenizer.token_text
        told["token_strs"] = [[spell(token) for token in row] for row in rows]
    if isinstance(given.prompt, list):
        return told
    return told | {name: told[name] and told[name][0] for name in ("count", "tokens", "token_strs")}


def detokenize(body: object, gateway: Door) -> Event:
    """The text of ids. prompt: every token spelled, what tokenize() was given; text: without the
    control tokens unless skip_special_tokens is false. Takes time in the number of the ids.

    Raises InvalidRequest naming the field.
    """
    given = read(DetokenizeRequest, body)
    check_model(given.model, gateway)
    is_one = not (given.tokens and isinstance(given.tokens[0], list))
    rows = [given.tokens] if is_one else several(given.tokens, "tokens")
    decode = gateway.renderer.tokenizer.decode
    prompts, texts = [], []
    for i, row in enumerate(rows):
        ids = _ids(row, "tokens" if is_one else f"tokens[{i}]", gateway)
        prompts.append(decode(ids, skip_special=False))
        texts.append(decode(ids, skip_special=given.skip_special_tokens))
    if is_one:
        return {"prompt": prompts[0], "text": texts[0]}
    return {"prompt": prompts, "text": texts}


def _of_text(text: str, given: TokenizeRequest, gateway: Door) -> list[int]:
    for name in ("add_generation_prompt", "continue_final_message", "chat_template_kwargs"):
        if getattr(given, name):
            raise InvalidRequest(f"{name} goes with messages", param=name)
    check_text(text, "prompt")
    bos = given.add_special_tokens is not False
    return list(
        map(int, gateway.renderer.tokenizer.encode(text, opens=True, special=True, bos=bos))
    )


def _of_messages(messages: list[Any], given: TokenizeRequest, gateway: Door) -> list[int]:
    if given.add_special_tokens:
        raise InvalidRequest(
            "the chat template writes its own special tokens: leave add_special_tokens out",
            param="add_special_tokens",
        )
    renderer = gateway.renderer
    shown, _ = renderer.shown(read_messages(messages), None)
    ids = renderer.chat.encode(
        shown,
        renderer.tokenizer,
        add_generation_prompt=given.add_generation_prompt,
        continue_final_message=given.continue_final_message,
        variables=given.chat_template_kwargs,
    )
    return list(map(int, ids))


def _ids(row: object, param: str, gateway: Door) -> Sequence[int]:
    if row == []:
        return []
    return memoryview(ids_bytes(row, param, vocabulary(gateway))).cast("i").tolist()
