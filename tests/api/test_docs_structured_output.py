"""docs/structured-output.md: its requests are answered, its names are known."""

from __future__ import annotations

import json
import pathlib
import re

import pytest

from radixserve.native import verdict
from radixserve.native.sampling import KINDS, Sampling
from tests.api.scripted import ScriptedGateway
from tests.api.talk import answered


@pytest.fixture(scope="module", autouse=True)
def no_child_left():
    yield
    verdict._child.close()
    verdict._long_child.close()


PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "structured-output.md").read_text()
REQUESTS = re.findall(r"```json\nPOST (\S+)\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_has_examples():
    assert len(REQUESTS) == 4
    assert all(f"`{kind}`" in PAGE for kind in KINDS)
    assert {"whitespace", "constraint_mode", "field_logprobs"} <= set(Sampling.__struct_fields__)


@pytest.mark.parametrize(("path", "body"), REQUESTS)
def test_its_requests_are_answered(renderer, path, body):
    gateway = ScriptedGateway(renderer, ('["a", "a"]',))
    reply = answered(gateway, path, json.loads(body))
    assert gateway.requests[0].constraint is not None
    if "validate" in body:
        [violation] = reply["meta_info"]["constraint_violations"]
        assert violation.keys() == {"pointer", "keyword", "message"}
