"""The interpreter: one branch of a program's state, and what each operation does to it.

Owns: prompt, text, variables, messages and history of one branch.
perform() is a generator that yields a Call and is sent the reply, so whoever drives it decides how
calls are made: in this thread, in another, or on an event loop. Must not know: threads, backends,
waiting.
"""

from __future__ import annotations

import reprlib
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, assert_never

from radixserve.lang.asking import Place, Settings, add_seed, ask, body_of, report_of
from radixserve.lang.calls import Call
from radixserve.lang.conversation import Conversation
from radixserve.lang.history import MARKS, CallReport, History
from radixserve.lang.ir import (
    Assign,
    Border,
    Declare,
    Gen,
    Note,
    Op,
    RoleBegin,
    RoleEnd,
    ScopeBegin,
    ScopeEnd,
    Select,
    Text,
    Thoughts,
)
from radixserve.lang.outputs import thoughts_of, value_of
from radixserve.lang.prompt import Part, Prompt
from radixserve.lang.replies import Generated, read_generated, read_scored


@dataclass(slots=True)
class Stream:
    """A variable's text as it grows; a new value of the same name is a new Stream."""

    text: str = ""
    meta: Any = None
    is_done: bool = False


class Interpreter:
    """variables, metas: by name. streams: each variable's newest text. own: names set here.

    reports: the finished calls of the whole run, shared by all its branches.
    """

    def __init__(
        self, place: Place, settings: Settings, reports: list[CallReport] | None = None
    ) -> None:
        self.variables: dict[str, Any] = {}
        self.metas: dict[str, Any] = {}
        self.streams: dict[str, Stream] = {}
        self.own: dict[str, None] = {}
        self.history = History()
        self.reports: list[CallReport] = [] if reports is None else reports
        self._place = place
        self.settings = settings
        self._prompt = Prompt()
        self._talk = Conversation()
        self._text = ""
        self._shown = ""
        self._live: Stream | None = None
        self._role_start = 0
        self._scopes: list[int] = []

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The closed role blocks."""
        return self._talk.messages

    def text(self) -> str:
        """Everything appended so far, role marks and what is being generated included.

        The marks are MARKS, not those of the model's template, which only the backend knows.
        """
        return self._shown + (self._live.text if self._live else "")

    def shown(self) -> str:
        """The variables in short."""
        return (
            ", ".join(f"{k}={reprlib.repr(v)}" for k, v in self.variables.items()) or "no variable"
        )

    def unknown(self, name: str) -> KeyError:
        """What to raise for a variable that is not there."""
        error = KeyError(name)
        error.add_note(f"variables of this state: {', '.join(self.variables) or 'none'}")
        return error

    def parts(self) -> list[Part]:
        return self._prompt.parts()

    def fork(self, size: int) -> list[Interpreter]:
        """`size` copies that go on from here; text after this is a new segment in all of them."""
        self._prompt.add_border()
        return [self._copy(place) for place in self._place.fork(size)]

    def blank(self) -> Interpreter:
        """What stands in for a child that has not begun."""
        return Interpreter(Place(self._place.run), self.settings, self.reports)

    def snapshot(self) -> dict[str, Any]:
        """What a finished state has to show, as a picklable value."""
        return {
            "variables": self.variables,
            "metas": self.metas,
            "messages": self.messages,
            "shown": self._shown,
            "pieces": self.history.pieces,
            "reports": self.reports,
        }

    def restore(self, kept: dict[str, Any]) -> None:
        """Show what snapshot() kept."""
        self._talk.messages, self._shown = kept["messages"], kept["shown"]
        self.history.pieces, self.reports = kept["pieces"], kept["reports"]
        for name, value in kept["variables"].items():
            self._assign(name, value, kept["metas"].get(name))

    def _copy(self, place: Place) -> Interpreter:
        child = Interpreter(place, self.settings, self.reports)
        child.variables.update(self.variables)
        child.metas.update(self.metas)
        child.streams.update(self.streams)
        child.history = self.history.copy()
        child._prompt = self._prompt.copy()
        child._talk = self._talk.copy()
        child._text = self._text
        child._shown = self._shown
        child._role_start = self._role_start
        return child

    def perform(self, op: Op) -> Generator[Call, Any, None]:
        """Do `op`, yielding a Call where it needs one and expecting its final reply."""
        match op:
            case Text(value=text):
                self._add_text(text)
            case Gen():
                yield from self._generate(op)
            case Select():
                yield from self._select(op)
            case RoleBegin():
                self._open(op)
            case RoleEnd(role=role):
                self._prompt.close_role(role)
                self._talk.close(role, self._text[self._role_start :])
                self._mark("\n")
            case Declare(tools=tools):
                self._talk.tell(tools, self._prompt.is_fixed)
                self._tell_tools()
            case Border():
                self._prompt.add_border()
            case _:
                self._keep_book(op)

    def _keep_book(self, op: ScopeBegin | ScopeEnd | Assign | Thoughts | Note) -> None:
        """What touches no prompt."""
        match op:
            case ScopeBegin():
                self._scopes.append(len(self._text))
            case ScopeEnd(name=name):
                self._assign(name, self._text[self._scopes.pop() :], None)
            case Assign(name=name, value=value, meta=meta):
                self._assign(name, value, meta)
            case Thoughts(name=name, of=of):
                self._assign(name, thoughts_of(of, self.metas.get(of)), None)
            case Note(name=name, told=told):
                value = self.text() if name is None else self.variables[name]
                told.kept(value, None if name is None else self.metas.get(name))
            case _:
                assert_never(op)

    def progress(self, chunk: dict[str, Any]) -> None:
        """A streamed chunk (cumulative) of the call that perform() waits for."""
        if self._live is not None:
            self._live.text = chunk["text"]
            self._live.meta = chunk.get("meta_info")

    def _add_text(self, text: str) -> None:
        self._prompt.add_text(text)
        self._text += text
        self._shown += text
        self.history.add("constant", text)

    def _open(self, op: RoleBegin) -> None:
        name = self._talk.open(op.call_id)
        if op.call_id:
            self._prompt.open_result(op.call_id, name)
        else:
            self._prompt.open_role(op.role)
        self._role_start = len(self._text)
        self._mark(MARKS[op.role])

    def _tell_tools(self) -> None:
        if not self._prompt.has_tools:
            self._prompt.tell([tool.spec for tool in self._talk.tools])

    def _mark(self, mark: str) -> None:
        self._shown += mark
        self.history.add("mark", mark)

    def _assign(self, name: str | None, value: Any, meta: Any) -> None:
        if name is None:
            return
        self.variables[name] = value
        self.own[name] = None
        self.streams[name] = Stream(value if isinstance(value, str) else "", meta, True)
        self.metas.pop(name, None)
        if meta is not None:
            self.metas[name] = meta

    def _generate(self, op: Gen) -> Generator[Call, Any, None]:
        sampling = op.sampling.over(self.settings.defaults)
        n = sampling.n or 1
        calling: dict[str, Any] = {}
        if op.tools is not None:
            calling = self._talk.allow(op.tools, self._prompt.is_fixed)
            self._tell_tools()
        streamed = self.settings.streaming and n == 1
        body = body_of(self._place, self._prompt.parts(), sampling.params(), stream=streamed)
        add_seed(body, self.settings.seed)
        live = self._live = Stream()
        if op.name is not None:
            self.streams[op.name] = live
        call = Call("generate", body | sampling.beside() | calling, op.name, op.timeout)
        report = report_of(call)
        outputs = read_generated((yield from ask(call, report, self.reports)), n)
        # The state goes on from the first output; the others are values only.
        self._keep(outputs[0], report)
        live.text, live.meta, live.is_done = outputs[0].text, outputs[0].meta, True
        tools = (op.tools and op.tools.tools) or self._talk.tools
        values = [value_of(op, each, tools) for each in outputs]
        if n == 1:
            self._assign(op.name, values[0], outputs[0].meta)
        else:
            self._assign(op.name, values, [each.meta for each in outputs])
        if op.name is not None:
            self.streams[op.name] = live

    def _keep(self, output: Generated, report: CallReport) -> None:
        self._live = None
        calls = [
            f"{each['function']['name']}({each['function']['arguments']})" for each in output.calls
        ]
        shown = "\n".join(filter(None, (output.text, *calls)))
        self._text += output.text
        self._shown += shown
        self._talk.called(output.calls)
        prompt_tokens = output.meta.get("prompt_tokens", 0)
        self.history.called(report.call, output.meta, prompt_tokens)
        forced = output.meta.get("forced_tokens", 0)
        self.history.wrote("generated", shown, report.call, len(output.kept), forced)
        if output.prompt is None:
            self._prompt.add_output(output.text, output.calls)
        else:
            self._prompt.replace(output.prompt, output.kept, output.rest, output.calls)

    def _select(self, op: Select) -> Generator[Call, Any, None]:
        unconditional = op.method.needs_unconditional
        asked = {"choices": list(op.choices), "unconditional": unconditional}
        body = body_of(self._place, [*self._prompt.parts(), asked], {})
        call = Call("choose", body, op.name, op.timeout)
        report = report_of(call)
        reply = yield from ask(call, report, self.reports)
        scored = read_scored(reply, op.choices, unconditional)
        decision = op.method.decide(scored.candidates)
        winner = scored.candidates[decision.index]
        self.history.called(report.call, scored.meta, scored.meta.get("prompt_tokens", 0))
        self.history.wrote("selected", winner.text, report.call, len(winner.ids))
        if scored.prompt is None:
            self._prompt.add_output(winner.text, [])
        else:
            self._prompt.replace(scored.prompt, list(winner.ids), "", [])
        self._text += winner.text
        self._shown += winner.text
        report.text = winner.text
        meta = scored.meta | {"method": op.method.name} | decision.meta
        meta["choices"] = [
            {"text": each.text, "ids": list(each.ids), "logprobs": list(each.logprobs)}
            | ({"unconditional_logprobs": list(each.unconditional)} if each.unconditional else {})
            for each in scored.candidates
        ]
        self._assign(op.name, winner.text, meta)
