"""A step's arrays on their way to the device: one pinned buffer, one copy.

Owns: where each array lies in the buffer, and that no pinned buffer is written while a copy may
still read it. Must not know: what the arrays mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from radixserve.executor.device import Device, Event

ALIGNED = 16  # bytes: no array's address depends on the lengths of those before it, but by this
BUFFERS = 3  # two steps in flight, one of which may have captured a graph and put its arrays twice

Arrays = Sequence[npt.NDArray[Any]]

_TORCH = {np.dtype(np.bool_): torch.bool} | {
    np.dtype(name): getattr(torch, name) for name in ("int32", "int64", "float32", "float64")
}


def offsets(sizes: Sequence[int]) -> list[int]:
    """Where arrays of so many bytes begin, and the last ends: [10, 4, 0] -> [0, 16, 32, 32]."""
    places = [0]
    for size in sizes:
        places.append(places[-1] + -(-size // ALIGNED) * ALIGNED)
    return places


class Staging:
    """Sends the arrays of one step after another to the same place on the device.

    The tensors of a step hold its arrays until the next put: steps run in the order of their puts.
    """

    def __init__(self, device: Device, capacities: Sequence[int] = ()) -> None:
        """capacities: bytes of each array at most; then every array has the same address in every
        step. Without them arrays lie side by side, and the buffers grow as steps do.
        """
        self._device = device
        self._places = offsets(capacities) if capacities else []
        self._host: list[torch.Tensor] = []
        self._copied: list[Event | None] = []
        self._turn = 0
        self._make(self._places[-1] if capacities else 4096)

    def _make(self, size: int) -> None:
        self._there = self._device.empty(size)
        self._host = [self._device.pinned(size) for _ in range(BUFFERS)]
        self._copied = [None] * BUFFERS

    def put(self, arrays: Arrays) -> list[torch.Tensor]:
        """The arrays (of one dimension each) on the device, by one copy.

        Raises ValueError for an array larger than its capacity.
        """
        sizes = [array.nbytes for array in arrays]
        places = self._places or offsets(sizes)
        if self._places:
            _check(sizes, places)
        elif places[-1] > len(self._there):
            self._make(2 * places[-1])
        host = self._next_host()
        memory = host.numpy()
        for array, place, size in zip(arrays, places, sizes):
            memory[place : place + size] = np.ascontiguousarray(array).view(np.uint8)
        used = places[len(arrays) - 1] + sizes[-1]
        self._device.send(host[:used], self._there[:used])
        self._copied[self._turn] = self._device.event()
        return [
            self._there[place : place + size].view(_TORCH[array.dtype])
            for array, place, size in zip(arrays, places, sizes)
        ]

    def _next_host(self) -> torch.Tensor:
        self._turn = (self._turn + 1) % BUFFERS
        copied = self._copied[self._turn]
        if copied is not None and not copied.is_done():
            copied.wait()
        return self._host[self._turn]


def _check(sizes: Sequence[int], places: Sequence[int]) -> None:
    if len(sizes) != len(places) - 1:
        raise ValueError(f"{len(sizes)} arrays for {len(places) - 1} places")
    for index, size in enumerate(sizes):
        if size > places[index + 1] - places[index]:
            room = places[index + 1] - places[index]
            raise ValueError(f"array {index} has {size} bytes, its place {room}")
