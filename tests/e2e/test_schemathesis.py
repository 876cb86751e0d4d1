"""Bodies that schemathesis makes, against a served engine: no 500, no undocumented status, and the
engine is as well afterwards as before."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

from tests.api.test_schemathesis import CHECKS, MODES, OPERATIONS
from tests.e2e.test_serve import Server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tiny_model: pathlib.Path, tmp_path_factory) -> Iterator[Server]:
    served = Server(tiny_model, tmp_path_factory.mktemp("log") / "log.txt", "--audit")
    try:
        served.wait_ready()
        yield served
        info = served.info()
        assert (info["running"], info["waiting"], info["locked_tokens"]) == (0, 0, 0)
    finally:
        served.stop()


@pytest.fixture(scope="module")
def schema(server: Server):
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


@pytest.mark.parametrize(("method", "path", "mode"), OPERATIONS)
def test_no_surprise(schema, method, path, mode) -> None:
    @settings(
        max_examples=max(20, settings.default.max_examples // 5),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=schema[path][method].as_strategy(generation_mode=mode))
    def check(case) -> None:
        if mode is MODES.POSITIVE and isinstance(case.body, dict):
            case.body.pop("model", None)  # or nearly all would be 404
            case.body.pop("timeout_s", None)  # the shortest end as 504
        case.call_and_validate(checks=CHECKS)

    check()
