"""Who makes the HTTP call that the current task serves.

Owns: the one context variable of the API. Middlewares set it, the door reads it, so that no dialect
has to carry it along. Must not know: how a key is checked, what a tenant may do.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from dataclasses import dataclass

from radixserve.api.tenants import Tenant
from radixserve.metrics.trail import NOBODY, Origin


@dataclass(frozen=True, slots=True)
class Caller:
    """tenant: None where keys are off. origin: what metrics, traces and logs are told."""

    tenant: Tenant | None = None
    origin: Origin = NOBODY

    @property
    def is_admin(self) -> bool:
        return self.tenant is None or self.tenant.admin


ANYONE = Caller()
caller: contextvars.ContextVar[Caller] = contextvars.ContextVar("caller", default=ANYONE)


@contextlib.contextmanager
def acting_for(who: Caller) -> Iterator[None]:
    """While this task, and those that it starts, work for `who`."""
    token = caller.set(who)
    try:
        yield
    finally:
        caller.reset(token)
