"""Whether an exception that is raised somewhere below a frame would be caught by user code.

Owns: reading the exception tables of code objects. Must not know: programs.
"""

from __future__ import annotations

import dis
from typing import Any


def is_caught(frame: Any, inner: str, last: str) -> bool:
    """Whether `frame`, or one that called it, stands inside a `try`; `with` blocks do not count.

    Frames of modules below `inner` are passed over, one of the module `last` or of the event loop
    ends the search.
    """
    while frame is not None and module_of(frame) != last:
        if module_of(frame).startswith("asyncio"):
            return False
        if not module_of(frame).startswith(inner) and _is_inside_try(frame):
            return True
        frame = frame.f_back
    return False


def module_of(frame: Any) -> str:
    """The name of the module whose code the frame runs."""
    return str(frame.f_globals.get("__name__", ""))


def _is_inside_try(frame: Any) -> bool:
    code = dis.Bytecode(frame.f_code)
    entries = getattr(code, "exception_entries", ())
    covering = [each for each in entries if each.start <= frame.f_lasti < each.end]
    if not covering:
        return False
    names = {each.offset: each.opname for each in code}
    offsets = sorted(names)
    return any(_is_handler(names, offsets, each.target) for each in covering)


def _is_handler(names: dict[int, str], offsets: list[int], target: int) -> bool:
    """Code of `except` or `finally`; that of `with` begins with a word of its own."""
    behind = [names[offset] for offset in offsets if offset >= target][:2]
    return behind[:1] == ["PUSH_EXC_INFO"] and behind[1:] != ["WITH_EXCEPT_START"]
