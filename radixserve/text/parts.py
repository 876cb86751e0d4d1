"""Parts of a prompt to ids, in the one place where programs are tokenised.

Owns: what the parts are, where segments begin and end, and the ids of choices. Must not know:
programs, requests, how a role is written by the template.

A part is one of these objects:
  {"ids": [..]}            taken as they are, never tokenised again. May also tell what the ids
                           hold: "roles": blocks that are closed in them, in order, "open": the
                           block still open at their end, and "called": calls that are made there,
                           [{"id", "name"}], in that block of an assistant
  {"text": ".."}           text of the program; inside a role block control tokens that it spells
                           are plain text, outside they are tokens
  {"border": true}         ends a text segment (a fork or sync of the program)
  {"role_open": "user"}    begins a block, in the words of the model's own chat template
  {"role_close": "user"}   ends it
  {"role_open": "tool", "tool_call_id": "c1", "name": "f"}   begins the result of a call
  {"tools": [..]}          first only: what may be called, as chat has it; the model is told where
                           its template tells it, or in the system block
  {"choices": ["a", ..]}   last only: answers to choose from
A block is its role, or, where it made calls or holds the result of one, an object of blocks.py.
All that stands between ids parts and borders is one segment, tokenised once, alone. The segment
that opens the prompt gets BOS and dummy prefix space.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from radixserve.errors import InvalidRequest
from radixserve.text.blocks import (
    ASSISTANT,
    TOOL,
    AnyBlock,
    Block,
    Called,
    block_to_json,
    check_role,
    read_block,
    read_called,
    result_block,
    role_of,
)
from radixserve.text.chat import Blocks, ChatTemplate
from radixserve.text.choices import EncodedChoice, encode_choices
from radixserve.text.conversation import Marks, map_strings, strings_in, unused_marks
from radixserve.text.part_shapes import check_part, checked_choices, kind_of
from radixserve.text.roles import json_text
from radixserve.text.tokenizer import IdArray, Run, Tokenizer, check_text
from radixserve.text.tool_calls import SYNTAXES, ToolSpeech
from radixserve.text.tool_calls_prompt import ToldParts

__all__ = ["EncodedChoice", "EncodedPrompt", "Segment", "encode_parts"]

# Blocks that may be rendered for one prompt: opening one renders all before it. That is 256 blocks
# from nothing, or 32 behind a thousand that came as ids.
MAX_RENDERED = 32_768
_GENERIC = ToolSpeech(SYNTAXES["generic"], is_described=True)


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
    roles: tuple[AnyBlock, ...]
    open_role: AnyBlock | None
    segments: tuple[Segment, ...]
    choices: tuple[EncodedChoice, ...] | None

    def told(self) -> dict[str, Any]:
        """The part with which the next prompt begins, as JSON values."""
        return {
            "ids": self.ids.tolist(),
            "roles": [block_to_json(each) for each in self.roles],
            "open": None if self.open_role is None else block_to_json(self.open_role),
        }


def encode_parts(
    parts: Sequence[Mapping[str, Any]],
    tokenizer: Tokenizer,
    chat: ChatTemplate,
    *,
    speech: ToolSpeech = _GENERIC,
    param: str = "parts",
    limit: int | None = None,
) -> EncodedPrompt:
    """Ids of the prompt that `parts` describe. speech: how the model is told of tools. limit:
    tokens that there is room for.

    Raises InvalidRequest naming the part (as param[i]) that is malformed, holds ids outside the
    vocabulary or lone surrogates, or names a role that the template refuses there; ContextTooLong
    where the text is too long for `limit`, whatever its tokens.
    """
    if not isinstance(parts, list | tuple):
        raise InvalidRequest("must be a list of parts", param=param)
    prompt = _Prompt(tokenizer, chat, limit, speech)
    told = ToldParts(speech.syntax) if speech.is_described else None
    choices = None
    for i, part in enumerate(parts):
        kind = kind_of(part, f"{param}[{i}]")
        if choices is not None:
            raise InvalidRequest("choices must be the last part", param=f"{param}[{i}]")
        if kind == "tools" and i:
            raise InvalidRequest("tools must be the first part", param=f"{param}[{i}]")
        try:
            check_part(kind, part)
            if kind == "choices":
                choices = checked_choices(part["choices"])
                continue
            for each in [part] if told is None else told.plain(kind, part):
                prompt.add(kind_of(each, param), each)
        except InvalidRequest as error:
            raise InvalidRequest(error.message, param=f"{param}[{i}].{kind}") from error
    for each in [] if told is None else told.rest():
        prompt.add(kind_of(each, param), each)
    if parts and "tools" in parts[0] and not (prompt.has_blocks and (told is None or told.is_told)):
        raise InvalidRequest("tools are told in a role block, and there is none", param=param)
    return prompt.encoded(choices)


class _Prompt:
    """The prompt as far as it has been read: finished ids, and the runs of the open segment."""

    def __init__(
        self, tokenizer: Tokenizer, chat: ChatTemplate, limit: int | None, speech: ToolSpeech
    ) -> None:
        self._tokenizer = tokenizer
        self._chat = chat
        self._limit = limit
        self._written = "" if speech.is_described else speech.syntax.written
        self._tools: list[dict[str, Any]] | None = None
        self._marks: Marks | None = None
        self._known_blocks: Blocks | None = None
        self._pieces: list[IdArray] = []
        self._length = 0
        self._segments: list[Segment] = []
        self._runs: list[Run] = []
        self._roles: tuple[AnyBlock, ...] = ()
        self._open: AnyBlock | None = None
        # The last closed block is a result: what closes it depends on what comes next.
        self._is_unclosed = False
        # The open block is a result that the template writes as a JSON text.
        self._is_quoted = False
        self._rendered = 0
        # The template puts BOS itself where its text comes first.
        self._adds_bos = True
        # Opening of an assistant block, until it is known whether the model writes all of it.
        self._unopened: str | None = None

    @property
    def has_blocks(self) -> bool:
        return bool(self._roles) or self._open is not None

    @property
    def _blocks(self) -> Blocks:
        if self._known_blocks is None:
            self._known_blocks = self._chat.blocks(self._tools, self._written)
        return self._known_blocks

    def add(self, kind: str, part: Mapping[str, Any]) -> None:
        match kind:
            case "tools":
                self.tell(part["tools"])
            case "ids":
                self.add_ids(part)
            case "text":
                self.add_text(part["text"])
            case "border":
                self.end_segment(part["border"])
            case "role_open":
                self.open_role(part)
            case _:
                self.close_role(part["role_close"])

    def tell(self, tools: list[dict[str, Any]]) -> None:
        """The template is to show these; control tokens that they spell are plain text."""
        self._tools = list(tools)
        if any(map(self._tokenizer.spells_control, strings_in(tools))):
            self._marks = Marks(*unused_marks(tools, 2))
            protect = self._marks.protect
            split = self._tokenizer.split_control
            self._tools = map_strings(self._tools, lambda text: protect(split(text)))

    def add_ids(self, part: Mapping[str, Any]) -> None:
        ids = self._checked_ids(part["ids"])
        self._begin_content()
        self._settle()
        self._append("ids", ids)
        roles = part.get("roles", ())
        if not isinstance(roles, list | tuple):
            raise InvalidRequest("roles must be a list")
        if self._open is not None and ("roles" in part or "open" in part):
            raise self._still_open()
        self._roles += tuple(read_block(role) for role in roles)
        if part.get("open") is not None:
            self._open = read_block(part["open"])
        if "called" in part:
            self._call(read_called(part["called"]))

    def _call(self, calls: tuple[Called, ...]) -> None:
        """The open block made these."""
        match self._open:
            case "assistant":
                self._open = Block(ASSISTANT, calls)
            case Block(role="assistant", calls=before):
                self._open = Block(ASSISTANT, (*before, *calls))
            case _:
                raise InvalidRequest("called: no block of an assistant is open")

    def _still_open(self) -> InvalidRequest:
        return InvalidRequest(f"the block of role {_role(self._open)!r} is still open")

    def add_text(self, text: object) -> None:
        if not isinstance(text, str):
            raise InvalidRequest("text must be a string")
        check_text(text)
        if text:
            self._begin_content()
            shown = json_text(text) if self._is_quoted else text
            self._add_run(Run(shown, special=self._open is None))

    def end_segment(self, border: object) -> None:
        if border is not True:
            raise InvalidRequest("border is true or not there")
        self._settle()

    def open_role(self, part: Mapping[str, Any]) -> None:
        role: AnyBlock = check_role(part["role_open"])
        if role == TOOL:
            role = result_block(part)
            self._is_quoted = self._blocks.shows_as_json(self._roles, role)
        if self._open is not None:
            raise self._still_open()
        self._rendered += len(self._roles)
        if self._rendered > MAX_RENDERED:
            raise InvalidRequest(
                "too many role blocks in one prompt; let it go on from ids with their roles"
            )
        if self._is_unclosed and role_of(role) == TOOL:
            self._is_unclosed = False
            self._add_written(self._blocks.between(self._roles, role))
            self._open = role
            return
        self._close_result()
        text = self._blocks.role_text(self._roles, role).open
        self._open = role
        if role == ASSISTANT:
            self._unopened = text
        else:
            self._open_with(text)

    def close_role(self, role: object) -> None:
        role = check_role(role)
        if self._open is None or _role(self._open) != role:
            raise InvalidRequest(f"the open block is of role {_role(self._open)!r}, not {role!r}")
        self._begin_content()
        self._is_quoted = False
        if role == TOOL:
            self._is_unclosed = True
        else:
            text = self._blocks.role_text(self._roles, self._open).close
            self._add_written(self._without_own_end(text))
        self._roles += (self._open,)
        self._open = None

    def _close_result(self) -> None:
        """No further result follows."""
        if self._is_unclosed:
            self._is_unclosed = False
            *earlier, last = self._roles
            self._add_written(self._blocks.role_text(tuple(earlier), last).close)

    def encoded(self, choices: Sequence[str] | None) -> EncodedPrompt:
        self._close_result()
        if self._unopened is not None:
            self._unopened = None
            self._open_with(self._blocks.generation_open(self._roles))
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
        self._add_written(text)

    def _without_own_end(self, text: str) -> str:
        """A model that ended the block itself has written its control token already."""
        if self._runs or not self._pieces or not len(self._pieces[-1]):
            return text
        last = self._tokenizer.special_bytes.get(int(self._pieces[-1][-1]))
        return text if last is None else text.removeprefix(last.decode())

    def _begin_content(self) -> None:
        self._close_result()
        if self._unopened is not None:
            text, self._unopened = self._unopened, None
            self._open_with(text)

    def _add_written(self, text: str) -> None:
        """Text of the template."""
        if self._marks is None:
            self._add_run(Run(text, special=True))
            return
        for run in self._marks.runs(text, self._tokenizer.spells_control):
            self._add_run(run)

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
        # A program sends all of its prompt with every call, so nothing here is done for each id.
        if not isinstance(ids, list | tuple) or not set(map(type, ids)) <= {int}:
            raise InvalidRequest("ids must be a list of whole numbers")
        limit = self._tokenizer.vocab_size
        if ids and not 0 <= min(ids) <= max(ids) < limit:
            wrong = next(token for token in ids if not 0 <= token < limit)
            raise InvalidRequest(f"id {wrong} is outside the vocabulary of {limit}")
        return np.array(ids, dtype=np.int32)


def _role(block: AnyBlock | None) -> str | None:
    return None if block is None else role_of(block)
