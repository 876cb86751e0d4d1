"""What the environment changes."""

from __future__ import annotations

import pytest

from radixserve import env


def test_an_engine_does_not_spin_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert env.of_engine("text")["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert env.of_engine("text")["OMP_WAIT_POLICY"] == "ACTIVE"


def test_an_engine_logs_as_its_front_does() -> None:
    assert env.of_engine("json")["RADIXSERVE_LOG_FORMAT"] == "json"
