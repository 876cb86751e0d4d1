"""examples/extraction.py as a reader runs it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import types

import pytest

PATH = "examples/extraction.py"


@pytest.fixture
def example() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("extraction", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["extraction"] = module  # pydantic looks its annotations up there
    spec.loader.exec_module(module)
    return module


def run(*arguments: str) -> str:
    command = [sys.executable, PATH, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    return ran.stdout


@pytest.mark.model
def test_records_of_the_default_model(example) -> None:
    found = run("--json").splitlines()
    orders = [example.Order.model_validate_json(line) for line in found]
    assert len(orders) == len(example.LETTERS)
    pairs = list(zip(orders, example.LETTERS))
    assert sum(order.city in letter for order, letter in pairs) >= 4
    assert sum(f"{order.items[0].quantity} " in letter for order, letter in pairs) >= 4


def test_records_are_valid_whatever_the_model_writes(example, tiny_model) -> None:
    table = run("--model", str(tiny_model))
    assert f"{len(example.LETTERS)} records in" in table
    assert "forced by the schema" in table
