"""A GPU played on the CPU: tensors, copies, events and graphs behave as on one, and it is strict.

- A tensor on it cannot be read by the host: .item(), .cpu(), .numpy(), bool() and the like raise,
  except inside `reading()`, which is for what the executor says it waits for.
- What is fetched shows in pinned memory only after a wait for an event behind the fetch; until then
  the memory holds nonsense.
- Pinned memory that a copy to the device has read must not change before an event behind that copy
  is done.
- A graph is the list of operations of its capture. Replaying runs them again on the same tensors
  and writes the same outputs, so whatever the host decided at capture stays decided.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

READS = {
    "item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__",
    "nonzero", "unique", "masked_select",
}  # fmt: skip
NONSENSE = 0x5B


class ReadByHost(AssertionError):
    """The host would have waited for the device."""


class OnDevice(torch.Tensor):
    """A tensor on the device; what is computed from it is one, too."""

    reads_allowed = False

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func.__name__ in READS and not OnDevice.reads_allowed:
            raise ReadByHost(func.__name__)
        if func.__name__ in ("numpy", "cpu", "tolist"):
            args = (args[0].as_subclass(torch.Tensor), *args[1:])
        return super().__torch_function__(func, types, args, kwargs or {})


@contextlib.contextmanager
def reading() -> Iterator[None]:
    OnDevice.reads_allowed = True
    try:
        yield
    finally:
        OnDevice.reads_allowed = False


class Recorder(TorchDispatchMode):
    """Notes every operation with what it read and wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple, dict, Any]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out


class FakeGraph:
    def __init__(self, device: FakeDevice, run: Callable[[], torch.Tensor]) -> None:
        recorder = Recorder()
        with recorder:
            self.output = run()
        self._device = device
        self._calls = recorder.calls

    def replay(self) -> None:
        self._device.replays += 1
        for func, args, kwargs, out in self._calls:
            again = func(*args, **kwargs)
            for old, new in zip(_tensors(out), _tensors(again)):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def _tensors(out: Any) -> list[torch.Tensor]:
    found = out if isinstance(out, tuple | list) else [out]
    return [one for one in found if isinstance(one, torch.Tensor)]


class FakeEvent:
    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self.place = device.queued

    def wait(self) -> None:
        self._device.waits += 1
        self._device.finish(self.place)

    def is_done(self) -> bool:
        return self._device.done >= self.place


class FakeDevice:
    """waits: times that the host waited for an event. copies: sends and fetches so far. captures:
    rows of each captured output."""

    place = torch.device("cpu")
    has_kernels = False

    def __init__(self, free: int = 2**24, peak: int = 2**17) -> None:
        self.free, self.peak = free, peak
        self.queued = self.done = 0
        self.waits = self.copies = self.replays = 0
        self.captures: list[int] = []
        self._pending: list[tuple[int, Callable[[], None]]] = []

    def empty(self, size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.uint8).as_subclass(OnDevice)

    def pinned(self, size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.uint8)

    def send(self, host: torch.Tensor, out: torch.Tensor) -> None:
        assert isinstance(out, OnDevice)
        out.copy_(host)
        before = host.clone()

        def check() -> None:
            assert torch.equal(host, before), "pinned memory changed under a copy"

        self._queue(check)

    def fetch(self, source: torch.Tensor, out: torch.Tensor) -> None:
        assert isinstance(source, OnDevice)
        assert source.shape == out.shape
        assert source.dtype == out.dtype
        values = source.as_subclass(torch.Tensor).clone()
        out.view(torch.uint8).fill_(NONSENSE)

        def arrive() -> None:
            out.copy_(values)

        self._queue(arrive)

    def _queue(self, effect: Callable[[], None]) -> None:
        self.queued += 1
        self.copies += 1
        self._pending.append((self.queued, effect))

    def finish(self, place: int) -> None:
        while self._pending and self._pending[0][0] <= place:
            self._pending.pop(0)[1]()
        self.done = max(self.done, place)

    def event(self) -> FakeEvent:
        return FakeEvent(self)

    def capture(self, run: Callable[[], torch.Tensor]) -> FakeGraph:
        run()
        graph = FakeGraph(self, run)
        self.captures.append(len(graph.output))
        return graph

    def free_memory(self) -> int:
        return self.free

    def peak_memory(self, run: Callable[[], None]) -> int:
        run()
        return self.peak
