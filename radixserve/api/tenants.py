"""Tenants: the names behind keys, and what each may use.

Owns: the key file, finding who a key belongs to, budgets of requests and tokens. Must not know:
HTTP, requests.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import pathlib
import time
import tomllib
from typing import Annotated, Any

import msgspec

from radixserve.config.schema import HttpConfig
from radixserve.errors import ConfigError

Count = Annotated[int, msgspec.Meta(ge=0)]


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One key of a key file. 0 and null: no limit.

    max_priority: the highest `priority` that its requests may ask for. namespace: its requests
    share prefixes with those of the same namespace only; empty is shared by all keys without one.
    """

    key: Annotated[str, msgspec.Meta(min_length=1)]
    requests_per_minute: Count = 0
    tokens_per_minute: Count = 0
    concurrent: Count = 0
    max_priority: int | None = None
    namespace: str = ""
    admin: bool = False


Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[\w.@-]+$")]


class KeyFile(msgspec.Struct, forbid_unknown_fields=True):
    """keys: by the name that metrics and logs call them."""

    keys: dict[Name, Entry]


class Budget:
    """So much a minute. It refills evenly and saves up no more than one minute's worth."""

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._left = float(per_minute)
        self._seen = time.monotonic()

    def wait(self, amount: float) -> float:
        """Seconds until `amount` may be spent; 0.0: now. Spends nothing."""
        if not self.per_minute:
            return 0.0
        now = time.monotonic()
        refilled = self._left + (now - self._seen) * self.per_minute / 60
        self._left, self._seen = min(refilled, float(self.per_minute)), now
        return max(0.0, (amount - self._left) * 60 / self.per_minute)

    def spend(self, amount: float) -> None:
        """What is spent beyond the budget is a debt that refilling pays first."""
        self._left -= amount


class Tenant:
    """Who a key belongs to. open_calls: HTTP calls under way."""

    def __init__(self, name: str, entry: Entry) -> None:
        self.name = name
        self.admin = entry.admin
        self.namespace = entry.namespace
        self.max_priority = entry.max_priority
        self.max_open_calls = entry.concurrent
        self.open_calls = 0
        self.requests = Budget(entry.requests_per_minute)
        self.tokens = Budget(entry.tokens_per_minute)


class Tenants:
    """All keys of a server."""

    def __init__(self, entries: dict[str, Entry]) -> None:
        self._tenants = [(_digest(e.key.encode()), Tenant(n, e)) for n, e in entries.items()]
        if len({digest for digest, _ in self._tenants}) < len(self._tenants):
            raise ConfigError("the same key is given twice")

    def __len__(self) -> int:
        return len(self._tenants)

    def find(self, key: bytes) -> Tenant | None:
        """Whose key it is. Takes the same time whichever it is, or none."""
        given, found = _digest(key), None
        for digest, tenant in self._tenants:
            if hmac.compare_digest(given, digest):
                found = tenant
        return found


def load_tenants(http: HttpConfig) -> Tenants:
    """Everyone named by flags and in the key file. Raises ConfigError; no message holds a key."""
    entries = {f"key-{i}": Entry(key=key) for i, key in enumerate(http.api_key, 1)}
    entries |= {f"admin-{i}": Entry(key=key, admin=True) for i, key in enumerate(http.admin_key, 1)}
    if http.api_key_file:
        for name, entry in _read(pathlib.Path(http.api_key_file)).items():
            if name in entries:
                raise ConfigError(f"--api-key-file: {name} is the name of a key of the flags")
            entries[name] = entry
    return Tenants(entries)


def _read(path: pathlib.Path) -> dict[str, Entry]:
    try:
        raw: Any = (
            tomllib.loads(path.read_text())
            if path.suffix == ".toml"
            else json.loads(path.read_text())
        )
        return dict(msgspec.convert(raw, KeyFile).keys)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--api-key-file {path}: {error}") from None


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
