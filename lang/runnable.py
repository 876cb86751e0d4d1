"""The ways of running something that has a function of a state: a program, or a compiled one.

Owns: the parameters of run() and its company, the arguments of items. Must not know: where the
function comes from, threads of a run, wire forms.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Unpack, cast, overload

from radixserve.lang.asking import Settings
from radixserve.lang.backends.base import Backend
from radixserve.lang.backends.default import resolve_backend
from radixserve.lang.backends.engine import EngineLink
from radixserve.lang.batch import LIST_AHEAD, Batch, BatchOptions, programs_at_once
from radixserve.lang.calls import Caller
from radixserve.lang.checkpoint import Checkpoint
from radixserve.lang.limits import LIMITS
from radixserve.lang.progress import Progress
from radixserve.lang.run import MakeCaller, Run
from radixserve.lang.sampling import RunDefaults, run_defaults
from radixserve.lang.state import ProgramState
from radixserve.lang.work import OpenRun, Work

Item = dict[str, Any] | tuple[Any, ...] | list[Any]


class RunArguments(RunDefaults, total=False):
    """The sampling arguments. seed: of the run; each call draws from its own, derived from this one
    and the call's place, so a run can be repeated.
    """

    seed: int | None


class BatchArguments(RunArguments, total=False):
    """What run_batch() takes beside the sampling arguments.

    num_threads: programs at once, "auto" for 96 or 16 a core; plain functions that wait for a value
    hold a thread each, `async def` ones none. progress_bar: on standard error. return_exceptions:
    an item's error stands in its place instead of ending the batch. timeout: seconds for the batch;
    program_timeout: for each program. retries: as in run(). checkpoint: a file; what is finished is
    kept there, and a later batch with the same file does only what is missing.
    """

    num_threads: int | Literal["auto"]
    progress_bar: bool
    return_exceptions: bool
    timeout: float | None
    program_timeout: float | None
    retries: int
    checkpoint: str | Path | None


_SAMPLING = (*RunDefaults.__annotations__, "seed")
_OF_RUN = ("stream", "backend", "use_thread", "timeout", "retries")


@dataclass(frozen=True, slots=True)
class Way:
    """How one set of arguments is run: on which function, and who makes its calls. order: as in
    Work.
    """

    func: Callable[..., Any]
    caller: MakeCaller = Caller
    order: Callable[[], str] | None = None


@dataclass(frozen=True, slots=True)
class Opener:
    """The settings of runs that are still to be opened; the backend is looked up for each.

    on_loop: the caller has an event loop to run on.
    """

    given: Backend | EngineLink | None
    settings: Settings
    use_thread: bool
    timeout: float | None
    retries: int
    on_loop: bool

    @property
    def backend(self) -> Backend:
        return resolve_backend(self.given)

    def opening(self, way: Way) -> OpenRun:
        def open_run(on_loop: bool) -> Run:
            return Run(
                self.backend,
                self.settings,
                timeout=self.timeout,
                retries=self.retries,
                use_thread=self.use_thread,
                on_loop=on_loop,
                caller=way.caller,
            )

        return open_run


class Runnable:
    """func: plain or async, its first parameter is the state. bound: arguments given already."""

    def __init__(
        self, func: Callable[..., Any], signature: inspect.Signature, bound: dict[str, Any]
    ) -> None:
        self._func = func
        self._signature = signature
        self._bound = bound

    def _way(self, opener: Opener, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Way:
        """How these arguments, which fit, are run with such settings."""
        del opener, args, kwargs
        return Way(self._func)

    def run(
        self,
        *args: Any,
        stream: bool = False,
        backend: Backend | EngineLink | None = None,
        use_thread: bool = True,
        timeout: float | None = None,
        retries: int = 0,
        **kwargs: Any,
    ) -> ProgramState:
        """Run the program. Keyword arguments named in RunArguments are the defaults of its gen()s,
        unless the function has a parameter of that name; the others are the function's.

        Raises what the function raised, else an error of any of its states, forks included, that
        the function has not been handed. stream: return at once while the function runs in a thread
        of its own; then errors surface where the state is read. use_thread=False: forks work one
        after another in the function's thread instead of side by side. timeout: seconds for the
        whole program, else DeadlineExceeded. retries: how often a call that fails for a transient
        reason (no reply, overload, a fault of the server) is made again, after a growing pause.
        """
        given, sampling = self._parted(kwargs)
        opener = _opener(
            sampling,
            backend,
            stream=stream,
            use_thread=use_thread,
            timeout=timeout,
            retries=retries,
            on_loop=False,
        )
        work = self._work(args, given, opener)
        return work.start() if stream else work.run()

    async def arun(
        self,
        *args: Any,
        stream: bool = False,
        backend: Backend | EngineLink | None = None,
        timeout: float | None = None,
        retries: int = 0,
        **kwargs: Any,
    ) -> Any:
        """run() on the running event loop; cancelling the task cancels the run and its calls.

        Returns a ProgramState that has ended; with stream=True at once an AsyncState to read while
        the program runs. An `async def` program lives on the loop alone. A plain function has a
        thread until it returns, which it does without waiting unless it reads a value.
        """
        given, sampling = self._parted(kwargs)
        opener = _opener(sampling, backend, stream=stream, timeout=timeout, retries=retries)
        work = self._work(args, given, opener)
        return await (work.astart() if stream else work.arun())

    @overload
    def run_batch(
        self,
        batch_kwargs: Iterable[Item],
        *,
        generator_style: Literal[False] = False,
        backend: Backend | EngineLink | None = None,
        **options: Unpack[BatchArguments],
    ) -> list[ProgramState]: ...

    @overload
    def run_batch(
        self,
        batch_kwargs: Iterable[Item],
        *,
        generator_style: Literal[True],
        backend: Backend | EngineLink | None = None,
        **options: Unpack[BatchArguments],
    ) -> Iterator[ProgramState]: ...

    def run_batch(
        self,
        batch_kwargs: Iterable[Item],
        *,
        generator_style: bool = False,
        backend: Backend | EngineLink | None = None,
        **options: Unpack[BatchArguments],
    ) -> Any:
        """Run the program once for each item; a list of states in the items' order.

        An item is a dict of keyword arguments or a tuple of positional ones. The sampling arguments
        are those of run(). generator_style: an iterator instead, which takes items and begins
        programs a bounded number ahead of the reader and holds on to no state it has given out.
        See BatchArguments for the rest.
        """
        batch = self._batch(batch_kwargs, backend, options, is_list=not generator_style)
        results = batch.results()
        return results if generator_style else list(results)

    def arun_batch(
        self,
        batch_kwargs: Iterable[Item],
        *,
        backend: Backend | EngineLink | None = None,
        **options: Unpack[BatchArguments],
    ) -> AsyncGenerator[ProgramState | BaseException, None]:
        """run_batch(generator_style=True) on the running loop, for `async for`."""
        return self._batch(batch_kwargs, backend, options, is_list=False).aresults()

    def _batch(
        self,
        items: Iterable[Item],
        backend: Backend | EngineLink | None,
        options: BatchArguments,
        is_list: bool,
    ) -> Batch:
        at_once = programs_at_once(options.pop("num_threads", "auto"))
        timeout, retries = options.pop("timeout", None), options.pop("retries", 0)
        each = options.pop("program_timeout", None)
        keep_errors = options.pop("return_exceptions", False)
        has_bar, path = options.pop("progress_bar", False), options.pop("checkpoint", None)
        opener = _opener(cast("RunArguments", options), backend, timeout=each, retries=retries)
        if isinstance(items, Sequence):  # wrong arguments raise before anything runs
            for item in items:
                self._checked(item)
        total = len(items) if isinstance(items, Sequence) else None
        checkpoint = Checkpoint(path, self._fingerprint(options)) if path is not None else None
        return Batch(
            (self._work(*self._checked(item), opener) for item in items),
            BatchOptions(
                at_once=at_once,
                ahead=at_once + LIST_AHEAD if is_list else 2 * at_once,
                keep_errors=keep_errors,
                timeout=timeout,
                checkpoint=checkpoint,
                progress=Progress(total) if has_bar else None,
            ),
        )

    def _checked(self, item: Item) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """An item's arguments. Raises TypeError when they do not fit the function."""
        match item:
            case dict():
                args, kwargs = (), item
            case tuple() | list():
                args, kwargs = tuple(item), {}
            case _:
                raise TypeError(
                    f"an item of run_batch is a dict or a tuple of arguments, not {item!r}"
                )
        self._check(args, self._bound | kwargs)
        return args, kwargs

    def _work(self, args: tuple[Any, ...], kwargs: dict[str, Any], opener: Opener) -> Work:
        kwargs = self._bound | kwargs
        self._check(args, kwargs)
        way = self._way(opener, args, kwargs)
        return Work(way.func, args, kwargs, opener.opening(way), way.order)

    def _parted(self, kwargs: dict[str, Any]) -> tuple[dict[str, Any], RunArguments]:
        """(arguments of the function, sampling arguments)."""
        own = [name for name in _SAMPLING if name not in self._signature.parameters]
        sampling = {name: kwargs.pop(name) for name in own if name in kwargs}
        return kwargs, cast("RunArguments", sampling)

    def _check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            self._signature.bind(None, *args, **kwargs)
        except TypeError as error:
            taken = [name for name in self._signature.parameters if name in _OF_RUN]
            hint = f"; run() has a {taken[0]}= of its own: use bind({taken[0]}=..)" if taken else ""
            raise TypeError(f"{self._func.__name__}(): {error}{hint}") from None

    def _fingerprint(self, sampling: BatchArguments) -> str:
        return f"{self._func.__module__}.{self._func.__qualname__} {sorted(sampling.items())}"


def _opener(
    sampling: RunArguments,
    backend: Backend | EngineLink | None,
    *,
    stream: bool = False,
    use_thread: bool = True,
    timeout: float | None = None,
    retries: int = 0,
    on_loop: bool = True,
) -> Opener:
    """Opens runs with these settings, which are checked now."""
    seed = sampling.pop("seed", None)
    if seed is not None:
        LIMITS["sampling_seed"]("seed", seed)
    settings = Settings(run_defaults(cast("RunDefaults", sampling)), stream, seed)
    return Opener(backend, settings, use_thread, timeout, retries, on_loop)
