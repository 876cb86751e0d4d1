"""docs/operators.md is true: its tables, its flags, its routes, its key file."""

from __future__ import annotations

import re
import tomllib

import pytest

from radixserve.api import entrance
from radixserve.api.tenants import load_tenants
from radixserve.config.flags import settings
from radixserve.config.schema import HttpConfig
from tests.docs_operators import PAGE, page

TEXT = PAGE.read_text()


def test_the_tables_are_those_of_the_code() -> None:
    assert page() == TEXT, "python -m tests.docs_operators writes them anew"


def test_every_flag_that_it_names_exists() -> None:
    known = {setting.flag for setting in settings()}
    known |= {"--no-" + setting.flag[2:] for setting in settings() if setting.kind is bool}
    named = set(re.findall(r"(?<![-\w])--[a-z][a-z-]+", TEXT))
    assert len(named) > 60
    assert named - known == {"--json"}


def block(kind: str) -> str:
    found = re.search(rf"```{kind}\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    return found[1]


def test_its_key_file_is_one(tmp_path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(block("toml"))
    tenants = load_tenants(HttpConfig(api_key_file=str(path)))
    keys = tomllib.loads(block("toml"))["keys"]
    alice = tenants.find(keys["alice"]["key"].encode())
    assert alice is not None
    assert (alice.name, alice.namespace, alice.max_open_calls) == ("alice", "team-a", 16)
    ops = tenants.find(keys["ops"]["key"].encode())
    assert ops is not None
    assert ops.admin


def test_its_public_and_admin_routes_are_those_of_the_server() -> None:
    (public,) = re.findall(r"- Without a key: (.*)", TEXT)
    assert set(re.findall(r"`(/[\w/]+)`", public)) == {*entrance.HEALTH, entrance.METRICS}
    (admin,) = re.findall(r"- An admin's key: (.*)", TEXT)
    routes = set(re.findall(r"`(/[\w/]+)`", admin)) - {"/abort_request"}
    assert {r for r in routes if not r.startswith(entrance.ADMIN_PREFIX)} == entrance.ADMIN


@pytest.mark.parametrize("kind", ["ini", "nginx"])
def test_its_configurations_are_balanced(kind: str) -> None:
    text = block(kind)
    assert text.count("{") == text.count("}")
    assert "radixserve" in text
