"""Where a state stands in its role blocks.

Owns: that blocks do not nest, and that a call right behind a closed block is an assistant's turn.
Must not know: templates.
"""

from __future__ import annotations

from dataclasses import dataclass

from radixserve.lang.errors import ProgramError
from radixserve.lang.ir import Gen, Op, RoleBegin, RoleEnd, Select, Text


@dataclass(frozen=True, slots=True)
class Roles:
    """open: the role of the open block. is_after: a block was closed and no text came since."""

    open: str | None = None
    is_after: bool = False

    def then(self, op: Op) -> tuple[Roles, tuple[Op, ...]]:
        """Where `op` leads and what it comes to. Raises ProgramError where it does not fit."""
        match op:
            case RoleBegin(role=role):
                if self.open is not None:
                    raise ProgramError(f"role {role!r} begins inside role {self.open!r}")
                return Roles(role), (op,)
            case RoleEnd(role=role):
                if self.open != role:
                    raise ProgramError(f"role {role!r} ends, but {self.open!r} is open")
                return Roles(None, is_after=True), (op,)
            case Gen() | Select() if self.open == "tool":
                raise ProgramError("the result of a call is no text of the model")
            case Gen(tools=tools) if tools and self.open != "assistant" and not self.is_after:
                raise ProgramError(f"{op!r} may call tools, which only an assistant's turn does")
            case Text(value=text) if text:
                return Roles(self.open), (op,)
            case Gen() | Select() if self.is_after:
                # A model asked to go on behind a user's turn would write the header of its own.
                return self, (RoleBegin("assistant"), op, RoleEnd("assistant"))
            case _:
                return self, (op,)
