"""What a branch knows of its role blocks and tools.

Owns: the closed blocks as messages, the tools of the conversation, which calls were made. Must not
know: prompts, how a call is made.
"""

from __future__ import annotations

from typing import Any

from radixserve.lang.errors import ProgramError
from radixserve.lang.toolkit import Calling, Tool

Message = dict[str, Any]


class Conversation:
    """messages: closed blocks, as OpenAI's chat has them. tools: () until they are told."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.tools: tuple[Tool, ...] = ()
        self._made: dict[str, str] = {}  # calls so far: id to name
        self._calls: list[dict[str, Any]] = []  # of the open block
        self._result_of = ""  # the call whose result the open block is

    def copy(self) -> Conversation:
        made = Conversation()
        made.messages, made.tools = list(self.messages), self.tools
        made._made, made._calls = dict(self._made), list(self._calls)
        made._result_of = self._result_of
        return made

    def tell(self, tools: tuple[Tool, ...], is_fixed: bool) -> None:
        """These are the tools. is_fixed: a call has been made, so nothing can come before it.

        Raises ProgramError where it is too late, or others are told already.
        """
        if self.tools and self.tools != tools:
            raise ProgramError(
                f"the tools of this conversation are {_names(self.tools)} already; tell all of "
                f"them at once: s += rs.tools([..])"
            )
        if is_fixed and not self.tools:
            raise ProgramError(
                f"tools stand where the conversation begins, which a call has already sent "
                f"without {_names(tools)}; tell them before it: s += rs.tools([..])"
            )
        self.tools = tools

    def allow(self, calling: Calling, is_fixed: bool) -> dict[str, Any]:
        """The fields of a call that may call tools, which are told now where none are yet.

        Raises ProgramError where they are not the conversation's.
        """
        if calling.tools is None and not self.tools:
            raise ProgramError("tool_choice needs tools: gen(tools=[..]), or s += rs.tools([..])")
        if calling.tools is not None and not self.tools:
            self.tell(calling.tools, is_fixed)
        for tool in calling.tools or ():
            if tool not in self.tools:
                raise ProgramError(
                    f"gen(tools=..): {tool.name!r} is none of the tools of this conversation, "
                    f"{_names(self.tools)}; tell all of them before its first call: "
                    f"s += rs.tools([..])"
                )
        return calling.fields(self.tools)

    def called(self, calls: list[dict[str, Any]]) -> None:
        """The model made these in the open block."""
        self._calls += calls
        self._made |= {call["id"]: call["function"]["name"] for call in calls}

    def open(self, call_id: str) -> str:
        """A block begins; call_id: of the call whose result it is, "" for any other block. The name
        of that call's function.

        Raises ProgramError where no call has that id.
        """
        self._result_of = call_id
        if call_id and call_id not in self._made:
            known = ", ".join(self._made) or "none was made"
            raise ProgramError(f"tool(): no call of this conversation is {call_id!r}: {known}")
        return self._made.get(call_id, "")

    def close(self, role: str, content: str) -> None:
        """The open block ends."""
        message: Message = {"role": role, "content": content}
        if self._result_of:
            message |= {"tool_call_id": self._result_of, "name": self._made[self._result_of]}
        if self._calls:
            message["tool_calls"] = self._calls
        self.messages.append(message)
        self._calls, self._result_of = [], ""


def _names(tools: tuple[Tool, ...]) -> str:
    return ", ".join(tool.name for tool in tools)
