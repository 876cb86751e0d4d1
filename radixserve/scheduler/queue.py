"""The requests that wait: in which order they are admitted, and who has been passed by whom.

Owns: the waiting queue, and the programs where the policy asks for them. Must not know: pages,
slots, budgets.
"""

from __future__ import annotations

from collections.abc import Callable

from radixserve.cache.retention import Owner
from radixserve.config.schema import ScheduleConfig
from radixserve.scheduler.policy import note_overtakes, note_passed, order
from radixserve.scheduler.programs import Programs, order_by_program
from radixserve.scheduler.request import Request


class WaitingQueue:
    """matched: how many tokens of a request the cache has now."""

    def __init__(self, config: ScheduleConfig, matched: Callable[[Request], int]) -> None:
        self._config = config
        self._matched = matched
        self._requests: list[Request] = []  # by arrival
        self.programs = Programs(config.max_programs) if config.policy == "program" else None

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def tokens(self) -> int:
        """Of all of them."""
        return sum(len(request.key) for request in self._requests) // 4

    def arrive(self, request: Request) -> None:
        """It has come."""
        self._requests.append(request)
        if self.programs is not None:
            self.programs.arrived(request)

    def put_back(self, request: Request) -> None:
        """It has been admitted and waits again; its place is by arrival."""
        self._requests.append(request)
        self._requests.sort(key=lambda r: r.arrival)

    def order(self, *, is_short: bool = False) -> list[Request]:
        """All of them, in the order to admit them. is_short: of pages."""
        config = self._config
        if self.programs is not None:
            return order_by_program(self._requests, config.program_overtakes, self._matched)
        most = config.max_overtakes
        return order(self._requests, config.policy, most, self._matched, is_short=is_short)

    def admit(self, request: Request) -> None:
        """It waits no longer, and has passed those that came before it and wait on."""
        self._requests.remove(request)
        if self.programs is None:
            note_passed(self._requests, request)
        else:
            note_overtakes(self._requests, request)
            self.programs.admitted(request)

    def remove(self, request: Request) -> None:
        """It has ended while it waited."""
        self._requests.remove(request)

    def ended(self, request: Request) -> None:
        """It has got its last message."""
        if self.programs is not None:
            self.programs.left(request)

    def program_ended(self, owner: Owner) -> None:
        """The program makes no more calls."""
        if self.programs is not None:
            self.programs.ended(owner)
