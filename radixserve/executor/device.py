"""What the executor asks of a GPU beside computing: memory, copies, events, graphs.

Owns: the protocol, and its CUDA side in as few lines as it takes, since no machine without a GPU
can run them. Must not know: plans, models, what is copied. Everything is queued on one stream in
the order of the calls; only Event.wait makes the host wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

cuda: Any = torch.cuda  # typed in parts, and in other parts by each release


class Event(Protocol):
    """A place in the device's queue."""

    def wait(self) -> None:
        """Until the device has come there."""

    def is_done(self) -> bool:
        """Whether it has, without waiting."""


class Graph(Protocol):
    """A captured computation. output: what it computed, written anew by each replay."""

    output: torch.Tensor

    def replay(self) -> None:
        """Queue it again, on what its input tensors hold by then."""


class Device(Protocol):
    """place: of the tensors. has_kernels: Triton's kernels run on them."""

    place: torch.device
    has_kernels: bool

    def empty(self, size: int) -> torch.Tensor:
        """[size] uint8 on the device, at an address that stays."""

    def pinned(self, size: int) -> torch.Tensor:
        """[size] uint8 on the host, which copies can read and write while the host goes on."""

    def send(self, host: torch.Tensor, out: torch.Tensor) -> None:
        """Queue a copy of pinned memory to the device; host stays as it is until it is done."""

    def fetch(self, source: torch.Tensor, out: torch.Tensor) -> None:
        """Queue a copy to pinned memory; out is read after an event behind it."""

    def event(self) -> Event:
        """Behind everything queued so far."""

    def capture(self, run: Callable[[], torch.Tensor]) -> Graph:
        """run's computation as a graph; all graphs share one memory pool."""

    def free_memory(self) -> int:
        """Bytes that this process may still take, what torch keeps unused included."""

    def peak_memory(self, run: Callable[[], None]) -> int:
        """Bytes that run takes at most beside what is taken already."""


class CudaEvent:
    """Event of the current stream."""

    def __init__(self) -> None:
        self._event = cuda.Event()
        self._event.record()

    def wait(self) -> None:
        self._event.synchronize()

    def is_done(self) -> bool:
        return bool(self._event.query())


class CudaGraph:
    """Graph over torch.cuda.CUDAGraph."""

    def __init__(self, graph: Any, output: torch.Tensor) -> None:
        self._graph = graph
        self.output = output

    def replay(self) -> None:
        self._graph.replay()


class CudaDevice:
    """Device of the current CUDA device and stream."""

    has_kernels = True

    def __init__(self) -> None:
        self.place = torch.device("cuda", cuda.current_device())
        self._pool: Any = None

    def empty(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self.place)

    def pinned(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def send(self, host: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(host, non_blocking=True)

    def fetch(self, source: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(source, non_blocking=True)

    def event(self) -> Event:
        return CudaEvent()

    def capture(self, run: Callable[[], torch.Tensor]) -> Graph:
        if self._pool is None:
            self._pool = cuda.graph_pool_handle()
        # Kernels are compiled and libraries set up by a first run, which a capture must not hold.
        here, aside = cuda.current_stream(), cuda.Stream()
        aside.wait_stream(here)
        with cuda.stream(aside):
            run()
        here.wait_stream(aside)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph, pool=self._pool):
            output = run()
        return CudaGraph(graph, output)

    def free_memory(self) -> int:
        cuda.empty_cache()
        return int(cuda.mem_get_info(self.place)[0])

    def peak_memory(self, run: Callable[[], None]) -> int:
        cuda.synchronize(self.place)
        cuda.reset_peak_memory_stats(self.place)
        before = cuda.memory_allocated(self.place)
        run()
        cuda.synchronize(self.place)
        most: int = cuda.max_memory_allocated(self.place)
        return most - int(before)
