"""What the cache machine plans: requests that run and steps that are in flight."""

from __future__ import annotations

from dataclasses import dataclass, field

from radixserve.cache.lease import Lease
from tests.cache_published import Tokens


@dataclass(eq=False)
class Running:
    lease: Lease
    namespace: str
    tokens: Tokens
    prompt: int
    cap: int
    computed: int  # planned, launched or matched
    launched: int = 0  # covered by launched steps
    published: int = 0  # whole pages
    in_flight: int = 0
    is_planned: bool = False


@dataclass
class Step:
    number: int
    rows: list[tuple[Running, int, int, list[int]]] = field(default_factory=list)
    copies: list[tuple[int, int, int]] = field(default_factory=list)
    written: list[tuple[int, int]] = field(default_factory=list)
