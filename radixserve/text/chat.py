"""Chat templates: messages to text, and to ids in which control tokens are the template's alone.

Owns: the model's templates, and what they say about roles. Must not know: requests, HTTP,
`tokenizers`.
"""

from __future__ import annotations

import functools
import json
import pathlib
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from radixserve.errors import ConfigError, InvalidRequest
from radixserve.log import logger
from radixserve.text.blocks import AnyBlock, Block, Called
from radixserve.text.conversation import Marks, map_strings, normalise, strings_in, unused_marks
from radixserve.text.files import DEFAULT_TEMPLATE, TextFiles
from radixserve.text.jinja import compile_template, run_template
from radixserve.text.roles import Roles, RoleText, RoleTexts
from radixserve.text.tokenizer import IdArray, Run, Tokenizer, check_text

_TOOL_TEMPLATE = "tool_use"
_MAX_TOLD = 32  # sets of tools whose role texts are kept
_MAX_KEPT_TEXT = 2**21  # characters of the renderings that are kept for one of them
_FEW, _MANY = 8, 512  # renderings that are kept
_OWN_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt", "range"})

Messages = Sequence[Mapping[str, Any]]


class ChatTemplate:
    """The model's chat template.

    available: whether chat works. problem: why not, "" where it does. prefix_stable: whether a
    conversation that goes on only appends to its rendering (checked at load); where it does not,
    programs and chat share only what comes before the first rewritten block. tool_text: the source
    of the template that is rendered where there are tools, "" for none.
    """

    def __init__(self, templates: Mapping[str, str], tokens: Mapping[str, str]) -> None:
        """templates: by name. tokens: bos_token, eos_token and the like, for the templates."""
        self._tokens = dict(tokens)
        self._templates: dict[str, jinja2.Template] = {}
        self.problem = ""
        for name, text in templates.items():
            try:
                self._templates[name] = compile_template(text)
            except jinja2.TemplateSyntaxError as error:
                self.problem = f"the model's chat template is broken: {error} (line {error.lineno})"
        if DEFAULT_TEMPLATE in self._templates:
            self.problem = ""
        elif not self.problem:
            named = f"; it has {', '.join(sorted(templates))}" if templates else ""
            self.problem = f"the model has no (default) chat template{named}"
        self.available = not self.problem
        self.tool_text = templates.get(_TOOL_TEMPLATE) or templates.get(DEFAULT_TEMPLATE, "")
        self._roles = RoleTexts(functools.partial(self._render_blocks, None))
        self._told: OrderedDict[tuple[str, str], RoleTexts] = OrderedDict()
        self._lock = threading.Lock()
        self.prefix_stable = self.available and self._roles.is_prefix_stable()

    @classmethod
    def load(cls, files: TextFiles, override: str = "") -> ChatTemplate:
        """The templates of `files`, or the one in the file `override` where that is given.

        A model without a working template loads all the same: chat is refused then, completions
        work. Raises ConfigError when `override` cannot be used.
        """
        templates = files.templates
        if override:
            try:
                templates = {DEFAULT_TEMPLATE: pathlib.Path(override).read_text(encoding="utf-8")}
            except (OSError, ValueError) as error:
                raise ConfigError(f"chat_template: cannot read {override}: {error}") from error
        chat = cls(templates, files.named_tokens)
        if override and not chat.available:
            raise ConfigError(f"chat_template: {override}: {chat.problem}")
        if not chat.available:
            logger.warning("chat is refused: %s", chat.problem)
        elif not chat.prefix_stable:
            logger.warning(
                "the chat template rewrites earlier blocks; programs and chat share less"
            )
        return chat

    def render(
        self,
        messages: Messages,
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of a conversation, for reading; encode() gives the ids that are safe to run.

        add_generation_prompt: open the answer; None: unless continue_final_message, which leaves
        the last message open instead. variables: more of them for the template.
        Raises InvalidRequest for messages that the template refuses, with its words.
        """
        options = _Options(add_generation_prompt, continue_final_message, tools, variables)
        return self._render(normalise(messages), options)

    def encode(
        self,
        messages: Messages,
        tokenizer: Tokenizer,
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        limit: int | None = None,
    ) -> IdArray:
        """Ids of a conversation: [n] int32. Arguments and errors as for render(); for limit, see
        Tokenizer.encode_runs.

        Control tokens that messages, tools or variables spell are plain text. Where none is spelt,
        the ids are those of render()'s text. BOS stands where the template puts it.
        """
        options = _Options(add_generation_prompt, continue_final_message, tools, variables)
        plain = normalise(messages)
        given = [plain, tools, variables]
        if not any(map(tokenizer.spells_control, strings_in(given))):
            runs = [Run(self._render(plain, options), special=True)]
            return tokenizer.encode_runs(runs, opens=True, bos=False, limit=limit)
        marks = Marks(*unused_marks(given, 2))
        plain, tools, variables = map_strings(
            given, lambda text: marks.protect(tokenizer.split_control(text))
        )
        options = _Options(add_generation_prompt, continue_final_message, tools, variables)
        runs = marks.runs(self._render(plain, options), tokenizer.spells_control)
        return tokenizer.encode_runs(runs, opens=True, bos=False, limit=limit)

    def blocks(self, tools: list[dict[str, Any]] | None = None, written: str = "") -> Blocks:
        """What opens and closes blocks of a conversation with these tools, which the template
        shows. written: see RoleTexts. Those of the last conversations are kept.

        Raises InvalidRequest for what is no JSON, or nested too deeply.
        """
        self._require()
        if not tools and not written:
            return Blocks(self._roles)
        try:
            key = (json.dumps(tools), written)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"no JSON that can be read: {error}") from None
        size = len(key[0])
        with self._lock:
            found = self._told.pop(key, None)
            if found is None:
                render = functools.partial(self._render_blocks, tools)
                # Each rendering that is kept has all tools in it.
                keeps = max(_FEW, min(_MANY, _MAX_KEPT_TEXT // size))
                found = RoleTexts(render, written, keeps)
            if size <= _MAX_KEPT_TEXT // _FEW:
                self._told[key] = found
            if len(self._told) > _MAX_TOLD:
                self._told.popitem(last=False)
        return Blocks(found)

    def role_text(self, earlier: Roles, role: str) -> RoleText:
        """See Blocks.role_text, without tools."""
        return self.blocks().role_text(earlier, role)

    def generation_open(self, earlier: Roles) -> str:
        """See Blocks.generation_open, without tools."""
        return self.blocks().generation_open(earlier)

    def _require(self) -> None:
        if not self.available:
            raise InvalidRequest(self.problem, param="messages")

    def _render(self, messages: list[dict[str, Any]], options: _Options) -> str:
        self._require()
        options.check(self._tokens)
        if not messages:
            raise InvalidRequest("messages is empty", param="messages")
        sentinel = ""
        if options.continues:
            (sentinel,) = unused_marks([messages, options.tools, options.variables], 1)
            last = messages[-1]
            messages = [*messages[:-1], {**last, "content": last["content"] + sentinel}]
        text = self._run(messages, options.tools, options.prompts, options.variables)
        if not options.continues:
            return text
        before, found, _ = text.rpartition(sentinel)
        if not found:
            raise InvalidRequest(
                "continue_final_message: the chat template does not show the last message",
                param="continue_final_message",
            )
        return before

    def _render_blocks(
        self,
        tools: list[dict[str, Any]] | None,
        roles: Roles,
        contents: tuple[str, ...],
        add_generation_prompt: bool,
    ) -> str:
        messages = [_message(block, text) for block, text in zip(roles, contents)]
        return self._run(messages, tools, add_generation_prompt, {})

    def _run(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool,
        more: Mapping[str, Any],
    ) -> str:
        name = _TOOL_TEMPLATE if tools and _TOOL_TEMPLATE in self._templates else DEFAULT_TEMPLATE
        variables: dict[str, Any] = {
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        return run_template(self._templates[name], variables | self._tokens | dict(more))


class Blocks:
    """What opens and closes the blocks of one conversation."""

    def __init__(self, texts: RoleTexts) -> None:
        self._texts = texts

    def role_text(self, earlier: Roles, role: AnyBlock) -> RoleText:
        """What opens and closes a block of `role` behind the closed blocks `earlier`.

        The template's default system block comes in once, when the first block is no system.
        Raises InvalidRequest with the template's own words where it refuses that order of roles.
        """
        return self._texts.role_text(_known_as(earlier), *_known_as((role,)))

    def between(self, earlier: Roles, role: AnyBlock) -> str:
        """See RoleTexts.between."""
        return self._texts.between(_known_as(earlier), *_known_as((role,)))

    def shows_as_json(self, earlier: Roles, role: AnyBlock) -> bool:
        """See RoleTexts.shows_as_json."""
        return self._texts.shows_as_json(_known_as(earlier), *_known_as((role,)))

    def generation_open(self, earlier: Roles) -> str:
        """What opens an assistant block that the model writes from its beginning."""
        return self._texts.generation_open(_known_as(earlier))


def _message(block: AnyBlock, text: str) -> dict[str, Any]:
    """text: the content; of a block that called, an argument of its last call."""
    match block:
        case Block(role=role, result_of=Called(id=call_id, name=name)):
            named = {"name": name} if name else {}
            return {"role": role, "tool_call_id": call_id, **named, "content": text}
        case Block(role=role, calls=(*before, last)):
            calls = [_call(each, {}) for each in before]
            return {"role": role, "content": "", "tool_calls": [*calls, _call(last, {"x": text})]}
        case _:
            return {"role": block, "content": text}


def _call(called: Called, arguments: dict[str, str]) -> dict[str, Any]:
    function = {"name": called.name, "arguments": arguments}
    return {"id": called.id, "type": "function", "function": function}


class _Options:
    """Arguments of one rendering, resolved: prompts: open the answer. continues: leave the last
    message open."""

    def __init__(
        self,
        add_generation_prompt: bool | None,
        continue_final_message: bool,
        tools: list[dict[str, Any]] | None,
        variables: Mapping[str, Any] | None,
    ) -> None:
        if add_generation_prompt and continue_final_message:
            raise InvalidRequest(
                "add_generation_prompt and continue_final_message exclude each other",
                param="continue_final_message",
            )
        self.continues = continue_final_message
        self.prompts = (
            not continue_final_message if add_generation_prompt is None else add_generation_prompt
        )
        self.tools = tools
        self.variables = variables or {}

    def check(self, tokens: Mapping[str, str]) -> None:
        taken = (_OWN_VARIABLES | tokens.keys()) & self.variables.keys()
        if taken:
            raise InvalidRequest(
                f"chat template variables that may not be set: {', '.join(sorted(taken))}",
                param="chat_template_kwargs",
            )
        for text in strings_in([self.tools, self.variables]):
            check_text(text, "tools" if self.tools else "chat_template_kwargs")


def _known_as(roles: Roles) -> Roles:
    return tuple("system" if role == "developer" else role for role in roles)
