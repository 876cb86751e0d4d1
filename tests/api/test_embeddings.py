"""/v1/embeddings over HTTP; the vectors' numbers are the engine's, see tests/e2e."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from tests.api.scripted import MODEL, ScriptedGateway
from tests.api.talk import answered, ask, error_of

PATH = "/v1/embeddings"


@pytest.fixture
def gateway(renderer):
    return ScriptedGateway(renderer)


def unit(*values: float) -> list[float]:
    vector = np.asarray(values, np.float64)
    return (vector / np.linalg.norm(vector)).astype(np.float32).tolist()


def test_one_text(gateway, renderer) -> None:
    found = answered(gateway, PATH, {"model": MODEL, "input": "hello there"})
    n = len(renderer.encode_text("hello there"))
    assert found == {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": pytest.approx(unit(n, 1, 2))}],
        "model": MODEL,
        "usage": {
            "prompt_tokens": n,
            "total_tokens": n,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }
    (request,) = gateway.requests
    assert (request.pooling, request.params.max_new_tokens) == ("mean", 0)


@pytest.mark.parametrize(
    ("given", "lengths"),
    [
        ([300, 301, 302], [3]),
        ([[300], [301, 302]], [1, 2]),
        ([[300, 301], [300, 301, 302, 303]], [2, 4]),
    ],
)
def test_ids_and_lists(gateway, given, lengths) -> None:
    found = answered(gateway, PATH, {"input": given, "normalize": False})
    assert [row["embedding"] for row in found["data"]] == [[n, 1, 2] for n in lengths]
    assert [row["index"] for row in found["data"]] == list(range(len(lengths)))
    assert found["usage"]["prompt_tokens"] == sum(lengths)


def test_base64_is_float32(gateway) -> None:
    body = {"input": [300, 301], "encoding_format": "base64"}
    packed = answered(gateway, PATH, body)["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(packed), "<f4").tolist() == pytest.approx(unit(2, 1, 2))


def test_dimensions_are_the_first_and_scaled_again(gateway) -> None:
    body = {"input": [300, 301], "dimensions": 2}
    assert answered(gateway, PATH, body)["data"][0]["embedding"] == pytest.approx(unit(2, 1))
    body |= {"normalize": False, "pooling": "last"}
    assert answered(gateway, PATH, body)["data"][0]["embedding"] == [2, 2]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": {"a": 1}}, "input"),
        ({"input": [5000]}, "input"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 4}, "dimensions"),
        ({"input": "a", "pooling": "max"}, "pooling"),
        ({"input": "a", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"input": "a", "stream": True}, "stream"),
        ({"input": ["a"] * 1025}, "input"),
        ({"input": "fox " * 1000}, "prompt"),
    ],
)
def test_errors_name_the_field(gateway, body, param) -> None:
    assert error_of(ask(gateway, PATH, body), 400)["param"] == param


def test_another_model(gateway) -> None:
    error_of(ask(gateway, PATH, {"model": "ada", "input": "a"}), 404)


def test_what_was_cached_is_explained(gateway) -> None:
    found = answered(gateway, PATH, {"input": ["a", "b"], "explain_cache": True})
    assert [report["reason"] for report in found["cache"]] == ["evicted", "evicted"]
    assert "cache" not in answered(gateway, PATH, {"input": "a"})


def test_salts_and_labels(gateway) -> None:
    answered(gateway, PATH, {"input": "a", "cache_salt": "s", "user": "u", "rid": "mine"})
    assert gateway.requests[-1].namespace
    assert gateway.requests[-1].rid == "mine"
