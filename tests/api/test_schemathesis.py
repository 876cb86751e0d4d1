"""Bodies that schemathesis makes of the OpenAPI document: no 500, no status that is not in it."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import checks
from schemathesis.specs.openapi import checks as openapi_checks

from radixserve.api.app import create_app
from radixserve.api.openapi import document
from radixserve.config.schema import Config, ModelConfig
from tests.api.scripted import MODEL, ScriptedGateway

CHECKS = [
    checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_schema_conformance,
]
MODES = schemathesis.GenerationMode
# What takes neither body nor query cannot be asked wrongly.
OPERATIONS = sorted(
    (method.upper(), path, mode)
    for path, each in document()["paths"].items()
    for method, told in each.items()
    for mode in MODES
    if mode is MODES.POSITIVE or "requestBody" in told or "/tree" in path
)


@pytest.fixture(scope="module")
def schema(renderer):
    gateway = ScriptedGateway(renderer)
    app = create_app(gateway, Config(model=ModelConfig(model=MODEL)))
    return schemathesis.openapi.from_asgi("/openapi.json", app)


@pytest.mark.parametrize(("method", "path", "mode"), OPERATIONS)
def test_no_surprise(schema, method, path, mode) -> None:
    strategy = schema[path][method].as_strategy(generation_mode=mode)

    @settings(
        max_examples=max(5, settings.default.max_examples // 6),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def check(case) -> None:
        if mode is MODES.POSITIVE and isinstance(case.body, dict):
            case.body.pop("model", None)  # or nearly all would be 404
        case.call_and_validate(checks=CHECKS)

    check()
