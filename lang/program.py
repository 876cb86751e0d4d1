"""A program: a Python function of a state, and the ways of running it.

Owns: binding of arguments and the parameters of run() and run_batch(). Must not know: threads of a
run, wire forms.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NoReturn, Unpack, overload

from radixserve.lang.backends.base import Backend
from radixserve.lang.backends.default import resolve_backend
from radixserve.lang.backends.engine import EngineLink
from radixserve.lang.batch import Batch, Job, workers_for
from radixserve.lang.ir import Nested
from radixserve.lang.run import Run
from radixserve.lang.sampling import RunDefaults, run_defaults
from radixserve.lang.state import ProgramState

Item = dict[str, Any] | tuple[Any, ...] | list[Any]


class Program:
    """What @function makes of a function whose first parameter is the state."""

    def __init__(self, func: Callable[..., Any], bound: dict[str, Any] | None = None) -> None:
        self._signature = inspect.signature(func)
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = list(self._signature.parameters.values())
        if not parameters or parameters[0].kind not in positional:
            raise TypeError(f"{func.__name__}() needs the state as its first parameter")
        self._func = func
        self._bound = bound or {}
        functools.update_wrapper(self, func)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """With a state first: run on that state now, and return what the function returns.

        Without: an expression that does so where it is appended.
        """
        kwargs = self._bound | kwargs
        if args and isinstance(args[0], ProgramState):
            return self._func(*args, **kwargs)
        self._check(args, kwargs)
        return Nested(self._func.__name__, self._func, args, kwargs)

    def bind(self, **kwargs: Any) -> Program:
        """The same program with these arguments given."""
        self._signature.bind_partial(None, **self._bound | kwargs)
        return Program(self._func, self._bound | kwargs)

    def run(  # noqa: PLR0913 - the compatible surface
        self,
        *args: Any,
        max_new_tokens: int | None = 128,
        n: int | None = 1,
        stop: str | Iterable[str] | None = (),
        stop_token_ids: Iterable[int] | None = (),
        stop_regex: str | Iterable[str] | None = (),
        temperature: float | None = 1.0,
        top_p: float | None = 1.0,
        top_k: int | None = -1,
        min_p: float | None = 0.0,
        frequency_penalty: float | None = 0.0,
        presence_penalty: float | None = 0.0,
        ignore_eos: bool | None = False,
        return_logprob: bool | None = None,
        logprob_start_len: int | None = None,
        top_logprobs_num: int | None = None,
        return_text_in_logprobs: bool | None = None,
        stream: bool = False,
        backend: Backend | EngineLink | None = None,
        use_thread: bool = True,
        **kwargs: Any,
    ) -> ProgramState:
        """Run the program; the sampling arguments are the defaults of its gen()s.

        Raises what the function raised, else an error of any of its states, forks included, that
        the function has not been handed. stream: return at once while the function runs in a thread
        of its own; then errors surface where the state is read. use_thread=False: forks work one
        after another in the function's thread instead of side by side.
        """
        defaults = run_defaults(
            {
                "max_new_tokens": max_new_tokens,
                "n": n,
                "stop": stop,
                "stop_token_ids": stop_token_ids,
                "stop_regex": stop_regex,
                "temperature": temperature,
                "top_p": top_p,
                "top_k": top_k,
                "min_p": min_p,
                "frequency_penalty": frequency_penalty,
                "presence_penalty": presence_penalty,
                "ignore_eos": ignore_eos,
                "return_logprob": return_logprob,
                "logprob_start_len": logprob_start_len,
                "top_logprobs_num": top_logprobs_num,
                "return_text_in_logprobs": return_text_in_logprobs,
            }
        )
        job = self._job(args, kwargs)
        run = Run(resolve_backend(backend), defaults, stream=stream, use_thread=use_thread)
        if stream:
            name = f"radixserve-{self._func.__name__}"
            threading.Thread(target=_run_quietly, args=(job, run), name=name, daemon=True).start()
        else:
            job(run)
        return ProgramState(run, run.root, outside=True)

    @overload
    def run_batch(
        self,
        batch_kwargs: Sequence[Item],
        *,
        backend: Backend | EngineLink | None = None,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: Literal[False] = False,
        return_exceptions: bool = False,
        **sampling: Unpack[RunDefaults],
    ) -> list[ProgramState]: ...

    @overload
    def run_batch(
        self,
        batch_kwargs: Sequence[Item],
        *,
        backend: Backend | EngineLink | None = None,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: Literal[True],
        return_exceptions: bool = False,
        **sampling: Unpack[RunDefaults],
    ) -> Iterator[ProgramState]: ...

    def run_batch(
        self,
        batch_kwargs: Sequence[Item],
        *,
        backend: Backend | EngineLink | None = None,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        return_exceptions: bool = False,
        **sampling: Unpack[RunDefaults],
    ) -> list[ProgramState] | Iterator[ProgramState]:
        """Run the program once for each item, num_threads at a time; states in the items' order.

        An item is a dict of keyword arguments or a tuple of positional ones. The sampling arguments
        are those of run(). The first error of any run cancels the others and is raised.
        generator_style: an iterator that starts a bounded number of runs ahead of the reader.
        progress_bar: count on standard error.
        """
        if return_exceptions:
            raise NotImplementedError("run_batch(return_exceptions=..) is not implemented yet")
        defaults = run_defaults(sampling)
        jobs = [self._item_job(item) for item in batch_kwargs]
        if not jobs:
            return iter(()) if generator_style else []
        chosen, workers = resolve_backend(backend), workers_for(num_threads, len(jobs))
        batch = Batch(jobs, lambda: Run(chosen, defaults), workers)
        if generator_style:
            return batch.results(2 * workers, progress_bar)
        return list(batch.results(len(jobs), progress_bar))

    def trace(self, **_: Any) -> NoReturn:
        raise NotImplementedError("trace is not implemented yet")

    def _item_job(self, item: Item) -> Job:
        if isinstance(item, dict):
            return self._job((), item)
        if isinstance(item, tuple | list):
            return self._job(tuple(item), {})
        raise TypeError(f"an item of run_batch is a dict or a tuple of arguments, not {item!r}")

    def _job(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Job:
        """The work of one run. Raises TypeError now when the arguments do not fit the function."""
        kwargs = self._bound | kwargs
        self._check(args, kwargs)

        def job(run: Run) -> None:
            run.execute(lambda: self._func(ProgramState(run, run.root), *args, **kwargs))

        return job

    def _check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            self._signature.bind(None, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._func.__name__}(): {error}") from None


@overload
def function(func: Callable[..., Any]) -> Program: ...


@overload
def function(func: None = None) -> Callable[[Callable[..., Any]], Program]: ...


def function(
    func: Callable[..., Any] | None = None,
) -> Program | Callable[[Callable[..., Any]], Program]:
    """Make a program of a function; @function and @function() are the same."""
    return Program if func is None else Program(func)


def _run_quietly(job: Job, run: Run) -> None:
    """The error of a streamed run stays with its root state, for those who read it."""
    with contextlib.suppress(BaseException):
        job(run)
