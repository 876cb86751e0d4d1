"""Keys: who they belong to, what the file may say, budgets."""

from __future__ import annotations

import json

import pytest

from radixserve.api.tenants import Budget, load_tenants
from radixserve.config.schema import HttpConfig
from radixserve.errors import ConfigError

TOML = """
[keys.alice]
key = "alice's sécret"
requests_per_minute = 60
concurrent = 2
namespace = "a"
max_priority = 3

[keys.root]
key = "r"
admin = true
"""


def test_keys_of_flags_and_of_a_file(tmp_path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(TOML)
    http = HttpConfig(api_key=("one", "two"), admin_key=("three",), api_key_file=str(path))
    tenants = load_tenants(http)
    assert len(tenants) == 5
    alice = tenants.find("alice's sécret".encode())
    assert alice is not None
    assert (alice.name, alice.namespace, alice.max_priority) == ("alice", "a", 3)
    found = {key: tenants.find(key.encode()) for key in ("one", "two", "three", "r")}
    assert {key: t and (t.name, t.admin) for key, t in found.items()} == {
        "one": ("key-1", False),
        "two": ("key-2", False),
        "three": ("admin-1", True),
        "r": ("root", True),
    }
    for wrong in (b"", b"on", b"one ", "alice's sécret".encode("latin-1"), b"\xff", b"x" * 10**7):
        assert tenants.find(wrong) is None


def test_a_json_file_says_the_same(tmp_path) -> None:
    path = tmp_path / "keys"
    path.write_text(json.dumps({"keys": {"alice": {"key": "k", "max_priority": None}}}))
    tenant = load_tenants(HttpConfig(api_key_file=str(path))).find(b"k")
    assert tenant is not None
    assert (tenant.name, tenant.max_priority) == ("alice", None)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("{", "Expecting property name"),
        ('{"keys": {"a": {}}}', "key"),
        ('{"keys": {"a": {"key": "SECRET", "rpm": 5}}}', "rpm"),
        ('{"keys": {"a": {"key": "SECRET", "concurrent": -1}}}', "concurrent"),
        ('{"keys": {"a": {"key": ""}}}', "length"),
        ('{"keys": {"a b": {"key": "SECRET"}}}', "pattern|regex"),
        ('{"keys": {"a": {"key": "SECRET"}, "b": {"key": "SECRET"}}}', "twice"),
        ('{"keys": {"key-1": {"key": "SECRET"}}}', "key-1"),
    ],
)
def test_a_file_that_cannot_be_right_is_refused_without_telling_keys(tmp_path, said, why) -> None:
    path = tmp_path / "keys.json"
    path.write_text(said)
    with pytest.raises(ConfigError, match=why) as caught:
        load_tenants(HttpConfig(api_key=("flag",), api_key_file=str(path)))
    assert "SECRET" not in str(caught.value)


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("radixserve.api.tenants.time.monotonic", lambda: now[0])
    return now


def test_a_budget_refills_evenly(clock) -> None:
    budget = Budget(60)
    for _ in range(60):
        assert budget.wait(1) == 0
        budget.spend(1)
    assert budget.wait(1) == pytest.approx(1.0)
    clock[0] += 0.5
    assert budget.wait(1) == pytest.approx(0.5)
    clock[0] += 0.5
    assert budget.wait(1) == 0
    clock[0] += 3600
    assert budget.wait(60) == 0
    assert budget.wait(61) == pytest.approx(1.0)


def test_a_debt_is_paid_first(clock) -> None:
    budget = Budget(60)
    budget.spend(90)
    assert budget.wait(1) == pytest.approx(31.0)
    clock[0] += 31
    assert budget.wait(1) == pytest.approx(0.0)


def test_no_budget_is_no_limit() -> None:
    budget = Budget(0)
    budget.spend(10**9)
    assert budget.wait(10**9) == 0
