"""What the rewritten code of a traced program asks before it calls and before it looks.

Owns: which functions are traced through, and which may be given a value as they are. Must not
know: how code is rewritten, what states do.

Wherever a value could be looked at in silence (`is`, type(), code that nobody can rewrite), the
program is dynamic: a graph that is wrong is worse than none.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import operator
import os
import random
import types
import typing
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

from radixserve.lang.async_state import AsyncForkGroup, AsyncState
from radixserve.lang.compiled.rewrite import CALL, PERCENT, SEEN, TEXT, asking_code
from radixserve.lang.compiled.texts import format_of, join_of, percent_of, text_of, traced_in
from radixserve.lang.compiled.traced import LANG, Recorder, TracedValue
from radixserve.lang.state import ForkGroup, ProgramState

_LIBRARY = str(Path(os.__file__).parent)
_PACKAGES = ("site-packages", "dist-packages")
_STATES = (ProgramState, AsyncState, ForkGroup, AsyncForkGroup)
_DRAWING = getattr(random, "_inst")  # noqa: B009 - what random's own functions draw from
_LOOKING = (
    type, id, callable, hasattr, getattr, isinstance, issubclass, operator.is_, operator.is_not,
)  # fmt: skip
# Classes that keep what they are given, or ask it aloud.
_KEEPING = (
    list, tuple, dict, set, frozenset, enumerate, zip, reversed, map, filter, str, int, float, bool,
    range, slice, deque, Counter, OrderedDict, defaultdict, functools.partial,
)  # fmt: skip
_CALLING = (map, filter, sorted, min, max, functools.reduce, functools.partial)
_IN_C = (
    types.BuiltinFunctionType, types.MethodDescriptorType, types.MethodWrapperType,
    types.WrapperDescriptorType, types.ClassMethodDescriptorType,
)  # fmt: skip


class Following:
    """The answers, for one trace."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def must(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """function(), of a whole program. Raises DynamicProgram where nobody can follow it."""
        code = getattr(func, "__code__", None)
        at = (code.co_filename, code.co_firstlineno) if code else None
        reason = f"the source of {_name(func)}() is not to be had, or not what it was made of"
        return self.function(func) or self._recorder.refuse(reason, at)

    def function(self, func: Any) -> Callable[..., Any] | None:
        """The function to trace in place of `func`; None: nobody can follow it."""
        if _is_ours(func):
            return cast("Callable[..., Any]", func)
        if isinstance(func, functools.partial):
            inner = self.function(func.func)
            return inner and functools.partial(inner, *func.args, **func.keywords)
        if isinstance(func, types.MethodType):
            inner = self.function(func.__func__)
            return inner and cast("Callable[..., Any]", types.MethodType(inner, func.__self__))
        if isinstance(func, types.FunctionType):
            return self._made(func)
        called = type(func).__call__ if callable(func) else None
        if isinstance(func, type) or not isinstance(called, types.FunctionType):
            return None
        inner = self._made(called)
        return inner and cast("Callable[..., Any]", types.MethodType(inner, func))

    def _made(self, func: types.FunctionType) -> types.FunctionType | None:
        new = asking_code(func.__code__)
        if new is None or new is func.__code__:
            return new and func
        cells = dict(zip(func.__code__.co_freevars, func.__closure__ or ()))
        answers = {TEXT: text_of, CALL: self.call, PERCENT: percent_of, SEEN: self.seen}
        cells |= {name: types.CellType(answer) for name, answer in answers.items()}
        closure = tuple(cells[name] for name in new.co_freevars)
        made = types.FunctionType(new, func.__globals__, func.__name__, func.__defaults__, closure)
        made.__kwdefaults__ = func.__kwdefaults__
        return made

    def call(self, func: Any, /, *args: Any, **kwargs: Any) -> Any:
        """func(*args, **kwargs)."""
        if type(func) is TracedValue or _is_ours(func):
            return func(*args, **kwargs)
        self._refuse_call(func, kwargs)
        if func is typing.cast or _makes_text(func):
            return _text_by(func, args, kwargs)
        if func is type and len(args) == 1 and self._is_text(args[0]):
            return str
        holds = (
            _holds((args, kwargs))
            if not _is_one_of(func, _LOOKING)
            else traced_in(args) is not None
        )
        if _is_one_of(func, _CALLING):
            args = tuple(map(self._callback, args))
            kwargs = {name: self._callback(each) for name, each in kwargs.items()}
        inner = self.function(func) if _is_worth_following(func, holds) else None
        if inner is None and holds and not _may_hold(func):
            self._recorder.refuse(
                f"a value or a state is given to {_name(func)}(), which cannot be seen through"
            )
        return (inner or func)(*args, **kwargs)

    def seen(self, value: Any, deep: bool = False) -> Any:
        """`value`, which `is` looks at; deep: match does."""
        if traced_in([value]) is not None or (deep and _holds(value, states=False)):
            self._recorder.refuse(f"a value is looked at by {'match' if deep else 'is'}")
        return value

    def _refuse_call(self, func: Any, kwargs: dict[str, Any]) -> None:
        if getattr(func, "__self__", None) is _DRAWING:
            self._recorder.refuse(f"random.{_name(func)}() draws at random")
        if func is contextlib.suppress or (func is asyncio.gather and len(kwargs)):
            self._recorder.refuse(f"{_name(func)}() catches errors, which a graph cannot do")

    def _is_text(self, value: Any) -> bool:
        return type(value) is TracedValue and self._recorder.is_text(value)

    def _callback(self, given: Any) -> Any:
        is_called = type(given) is not TracedValue and callable(given)
        return functools.partial(self.call, given) if is_called else given


def _makes_text(func: Any) -> bool:
    return func is str or func is format or type(getattr(func, "__self__", None)) is str


def _text_by(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """cast(), str(x), format(x), and the methods of a str."""
    if func is typing.cast and len(args) == 2:
        return args[1]
    if (func is str or func is format) and len(args) == 1:
        is_traced = type(args[0]) is TracedValue
        return text_of((args[0], -1, "")) if is_traced else func(*args, **kwargs)
    owner, name = getattr(func, "__self__", None), _name(func)
    if type(owner) is str and name == "join" and len(args) == 1:
        return join_of(owner, args[0])
    if type(owner) is str and name == "format":
        return format_of(owner, args, kwargs)
    if type(owner) is str and name == "format_map" and args and type(args[0]) is dict:
        return format_of(owner, (), args[0])
    return func(*args, **kwargs)


def _holds(value: Any, states: bool = True, depth: int = 8) -> bool:
    """Whether a traced value, or a state, is among them; of what is too deep nobody knows."""
    kind = type(value)
    if kind is TracedValue or depth == 0:
        return True
    if issubclass(kind, _STATES):
        return states
    if issubclass(kind, dict):
        value = [*value.keys(), *value.values()]
    elif not issubclass(kind, list | tuple | set | frozenset | deque):
        return False
    return any(_holds(each, states, depth - 1) for each in value)


def _is_worth_following(func: Any, holds: bool) -> bool:
    """The standard library is not; what others wrote is where it is given a value."""
    at = func.func if isinstance(func, functools.partial) else func
    at = getattr(at, "__func__", at)
    at = at if hasattr(at, "__code__") or not callable(at) else type(at).__call__
    filename = getattr(getattr(at, "__code__", None), "co_filename", "")
    if any(name in filename for name in _PACKAGES):
        return holds
    return bool(filename) and not filename.startswith(_LIBRARY)


def _may_hold(func: Any) -> bool:
    if _is_one_of(func, _LOOKING):
        return False
    return _is_one_of(func, _KEEPING) or isinstance(func, _IN_C)


def _is_ours(func: Any) -> bool:
    """A word of the language, a program, a method of a state."""
    if isinstance(func, functools.partial):
        return False
    own = func if hasattr(func, "__code__") or isinstance(func, type) else type(func)
    own = getattr(func, "__func__", own)
    return str(getattr(own, "__module__", "")).startswith(LANG)


def _is_one_of(func: Any, several: Iterable[Any]) -> bool:
    return any(func is each for each in several)


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", type(func).__name__))
