"""examples/extraction_confidence.py as a reader runs it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import pytest

PATH = "examples/extraction_confidence.py"


@pytest.mark.model
def test_confidence_separates_what_was_read_from_what_was_made_up() -> None:
    command = [sys.executable, PATH, "--show"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    areas = dict(re.findall(r"^(\w+) +AUC ([\d.]+)$", ran.stdout, re.MULTILINE))
    assert areas.keys() == {"city", "colour"}
    assert all(float(area) >= 0.8 for area in areas.values()), areas
    assert len(re.findall(r"^.* wants .*colour \w+ \([\d.]+\)$", ran.stdout, re.MULTILINE)) == 24


def test_the_area_under_the_curve() -> None:
    spec = importlib.util.spec_from_file_location("confidence_example", PATH)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = example
    spec.loader.exec_module(example)
    assert example.auc([3, 4], [1, 2]) == 1
    assert example.auc([1, 2], [3, 4]) == 0
    assert example.auc([1, 1], [1]) == 0.5
    assert example.auc([1, 3], [2]) == 0.5
