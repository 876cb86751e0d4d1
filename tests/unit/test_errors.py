"""Errors keep their kind, field and code on the way over the wire."""

from __future__ import annotations

import pytest

from radixserve.errors import (
    Cancelled,
    ConfigError,
    ContextTooLong,
    EngineDead,
    InternalError,
    InvalidRequest,
    ModelLoadError,
    QueueFull,
    RadixServeError,
    RequestError,
    TimedOut,
    request_error,
)

REQUEST_ERRORS = [InvalidRequest, ContextTooLong, QueueFull, Cancelled, TimedOut, InternalError]


@pytest.mark.parametrize("kind", REQUEST_ERRORS)
def test_a_request_error_is_rebuilt_from_its_code(kind):
    sent = kind("too much", param="n")
    rebuilt = request_error(sent.code, sent.message, sent.param)
    assert type(rebuilt) is kind
    assert (str(rebuilt), rebuilt.param, rebuilt.status) == ("too much", "n", kind.status)


def test_codes_are_distinct_and_statuses_are_errors():
    assert len({kind.code for kind in REQUEST_ERRORS}) == len(REQUEST_ERRORS)
    assert all(400 <= kind.status < 600 for kind in REQUEST_ERRORS)


def test_an_unknown_code_becomes_an_internal_error_that_keeps_it():
    rebuilt = request_error("model_on_fire", "smoke")
    assert type(rebuilt) is InternalError
    assert (rebuilt.code, rebuilt.status, rebuilt.message) == ("model_on_fire", 500, "smoke")


def test_a_given_code_stays_with_the_one_error():
    assert InvalidRequest("x", code="unsupported").code == "unsupported"
    assert InvalidRequest("x").code == "invalid_request"


@pytest.mark.parametrize("kind", [ConfigError, ModelLoadError, EngineDead, RequestError])
def test_all_descend_from_one(kind):
    assert issubclass(kind, RadixServeError)


def test_a_constraint_that_the_engine_cannot_compile_is_the_clients_fault():
    rebuilt = request_error("unsupported_schema", "takes too long", "regex")
    assert type(rebuilt) is InvalidRequest
    assert (rebuilt.code, rebuilt.param, rebuilt.status) == ("unsupported_schema", "regex", 400)
