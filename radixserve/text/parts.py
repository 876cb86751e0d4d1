"""Parts of a prompt to ids, in the one place where programs are tokenised.

Owns: what the parts are, where segments begin and end, and the ids of choices. Must not know:
programs, requests, how a role is written by the template.

A part is one of these objects:
  {"ids": [..]}            taken as they are, never tokenised again. May also tell what the ids
                           hold: "roles": blocks that are closed in them, in order, and "open":
                           the role of the block still open at their end
  {"text": ".."}           text of the program; inside a role block control tokens that it spells
                           are plain text, outside they are tokens
  {"border": true}         ends a text segment (a fork or sync of the program)
  {"role_open": "user"}    begins a block, in the words of the model's own chat template
  {"role_close": "user"}   ends it
  {"choices": ["a", ..]}   last only: answers to choose from
All that stands between ids parts and borders is one segment, tokenised once, alone. The segment
that opens the prompt gets BOS and dummy prefix space.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from radixserve.errors import InvalidRequest
from radixserve.text.chat import ChatTemplate
from radixserve.text.choices import EncodedChoice, encode_choices
from radixserve.text.roles import check_role
from radixserve.text.tokenizer import IdArray, Run, Tokenizer, check_text

__all__ = ["EncodedChoice", "EncodedPrompt", "Segment", "encode_parts"]

# Blocks that may be rendered for one prompt: opening one renders all before it. That is 256 blocks
# from nothing, or 32 behind a thousand that came as ids.
MAX_RENDERED = 32_768
_KINDS = ("ids", "text", "border", "role_open", "role_close", "choices")


@dataclass(frozen=True, slots=True)
class Segment:
    """Where a stretch of the prompt came from: ids[start:end]."""

    kind: Literal["ids", "text"]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """ids: [n] int32, may be empty. roles: closed blocks, in order; open_role: the block still
    open; both are to be given back with these ids when the prompt goes on. choices: None unless
    asked for; the prompt then ends where they part, which may be inside its last text."""

    ids: IdArray
    roles: tuple[str, ...]
    open_role: str | None
    segments: tuple[Segment, ...]
    choices: tuple[EncodedChoice, ...] | None


def encode_parts(
    parts: Sequence[Mapping[str, Any]],
    tokenizer: Tokenizer,
    chat: ChatTemplate,
    *,
    param: str = "parts",
    limit: int | None = None,
) -> EncodedPrompt:
    """Ids of the prompt that `parts` describe. limit: tokens that there is room for.

    Raises InvalidRequest naming the part (as param[i]) that is malformed, holds ids outside the
    vocabulary or lone surrogates, or names a role that the template refuses there; ContextTooLong
    where the text is too long for `limit`, whatever its tokens.
    """
    if not isinstance(parts, list | tuple):
        raise InvalidRequest("must be a list of parts", param=param)
    prompt = _Prompt(tokenizer, chat, limit)
    choices = None
    for i, part in enumerate(parts):
        kind = _kind(part, f"{param}[{i}]")
        if choices is not None:
            raise InvalidRequest("choices must be the last part", param=f"{param}[{i}]")
        try:
            if kind == "choices":
                choices = _checked_choices(part["choices"])
            else:
                prompt.add(kind, part)
        except InvalidRequest as error:
            raise InvalidRequest(error.message, param=f"{param}[{i}].{kind}") from error
    return prompt.encoded(choices)


class _Prompt:
    """The prompt as far as it has been read: finished ids, and the runs of the open segment."""

    def __init__(self, tokenizer: Tokenizer, chat: ChatTemplate, limit: int | None) -> None:
        self._tokenizer = tokenizer
        self._chat = chat
        self._limit = limit
        self._pieces: list[IdArray] = []
        self._length = 0
        self._segments: list[Segment] = []
        self._runs: list[Run] = []
        self._roles: tuple[str, ...] = ()
        self._open: str | None = None
        self._rendered = 0
        # The template puts BOS itself where its text comes first.
        self._adds_bos = True
        # Opening of an assistant block, until it is known whether the model writes all of it.
        self._unopened: str | None = None

    def add(self, kind: str, part: Mapping[str, Any]) -> None:
        match kind:
            case "ids":
                self.add_ids(part)
            case "text":
                self.add_text(part["text"])
            case "border":
                self.end_segment(part["border"])
            case "role_open":
                self.open_role(part["role_open"])
            case _:
                self.close_role(part["role_close"])

    def add_ids(self, part: Mapping[str, Any]) -> None:
        ids = self._checked_ids(part["ids"])
        self._begin_content()
        self._settle()
        self._append("ids", ids)
        roles = part.get("roles", ())
        if not isinstance(roles, list | tuple):
            raise InvalidRequest("roles must be a list")
        if self._open is not None and ("roles" in part or "open" in part):
            raise InvalidRequest(f"the block of role {self._open!r} is still open")
        self._roles += tuple(check_role(role) for role in roles)
        if part.get("open") is not None:
            self._open = check_role(part["open"])

    def add_text(self, text: object) -> None:
        if not isinstance(text, str):
            raise InvalidRequest("text must be a string")
        check_text(text)
        if text:
            self._begin_content()
            self._add_run(Run(text, special=self._open is None))

    def end_segment(self, border: object) -> None:
        if border is not True:
            raise InvalidRequest("border is true or not there")
        self._settle()

    def open_role(self, role: object) -> None:
        role = check_role(role)
        if self._open is not None:
            raise InvalidRequest(f"the block of role {self._open!r} is still open")
        self._rendered += len(self._roles)
        if self._rendered > MAX_RENDERED:
            raise InvalidRequest(
                "too many role blocks in one prompt; let it go on from ids with their roles"
            )
        text = self._chat.role_text(self._roles, role).open
        self._open = role
        if role == "assistant":
            self._unopened = text
        else:
            self._open_with(text)

    def close_role(self, role: object) -> None:
        role = check_role(role)
        if self._open != role:
            raise InvalidRequest(f"the open block is of role {self._open!r}, not {role!r}")
        self._begin_content()
        text = self._chat.role_text(self._roles, role).close
        self._add_run(Run(self._without_own_end(text), special=True))
        self._roles += (role,)
        self._open = None

    def encoded(self, choices: Sequence[str] | None) -> EncodedPrompt:
        if self._unopened is not None:
            self._unopened = None
            self._open_with(self._chat.generation_open(self._roles))
        encoded = None if choices is None else self._encode_choices(choices)
        self._settle()
        if self._length == 0 and encoded is None:
            self._append("text", self._encode(()))  # BOS, where the model wants one
        ids = np.concatenate([np.empty(0, np.int32), *self._pieces])
        return EncodedPrompt(ids, self._roles, self._open, tuple(self._segments), encoded)

    def _open_with(self, text: str) -> None:
        if self._length == 0 and not self._runs:
            self._adds_bos = False
        elif not self._roles:
            text = text.removeprefix(self._tokenizer.opening_text)
        self._add_run(Run(text, special=True))

    def _without_own_end(self, text: str) -> str:
        """A model that ended the block itself has written its control token already."""
        if self._runs or not self._pieces or not len(self._pieces[-1]):
            return text
        last = self._tokenizer.special_bytes.get(int(self._pieces[-1][-1]))
        return text if last is None else text.removeprefix(last.decode())

    def _begin_content(self) -> None:
        if self._unopened is not None:
            text, self._unopened = self._unopened, None
            self._open_with(text)

    def _add_run(self, run: Run) -> None:
        if self._runs and self._runs[-1].special == run.special:
            run = Run(self._runs.pop().text + run.text, run.special)
        self._runs.append(run)

    def _settle(self) -> None:
        if self._runs:
            self._append("text", self._encode(self._runs))
        self._runs = []

    def _append(self, kind: Literal["ids", "text"], ids: IdArray) -> None:
        if len(ids):
            self._segments.append(Segment(kind, self._length, self._length + len(ids)))
            self._pieces.append(ids)
            self._length += len(ids)

    def _encode(self, runs: Sequence[Run]) -> IdArray:
        return self._tokenizer.encode_runs(
            runs, opens=self._length == 0, bos=self._adds_bos, limit=self._room()
        )

    def _room(self) -> int | None:
        if self._limit is None:
            return None
        return max(0, self._limit - self._length)

    def _encode_choices(self, choices: Sequence[str]) -> tuple[EncodedChoice, ...]:
        ids, encoded = encode_choices(
            self._tokenizer,
            self._runs,
            [Run(text, special=self._open is None) for text in choices],
            opens=self._length == 0,
            bos=self._adds_bos,
            limit=self._room(),
        )
        self._runs = []
        self._append("text", ids)
        return encoded

    def _checked_ids(self, ids: object) -> IdArray:
        if not isinstance(ids, list | tuple) or any(type(token) is not int for token in ids):
            raise InvalidRequest("ids must be a list of whole numbers")
        limit = self._tokenizer.vocab_size
        wrong = [token for token in ids if not 0 <= token < limit]
        if wrong:
            raise InvalidRequest(f"id {wrong[0]} is outside the vocabulary of {limit}")
        return np.array(ids, dtype=np.int32)


def _kind(part: object, param: str) -> str:
    if not isinstance(part, Mapping):
        raise InvalidRequest("a part is an object", param=param)
    kinds = [kind for kind in _KINDS if kind in part]
    allowed = {"ids", "roles", "open"} if kinds == ["ids"] else set(kinds)
    if len(kinds) != 1 or part.keys() - allowed:
        raise InvalidRequest(
            f"a part has one of {', '.join(_KINDS)} (roles and open may stand beside ids), "
            f"not {', '.join(sorted(map(str, part))) or 'nothing'}",
            param=param,
        )
    return kinds[0]


def _checked_choices(choices: object) -> list[str]:
    if not isinstance(choices, list | tuple) or not choices:
        raise InvalidRequest("choices must be a list of at least one string")
    for text in choices:
        if not isinstance(text, str):
            raise InvalidRequest("choices must be strings")
        check_text(text)
    return list(choices)
