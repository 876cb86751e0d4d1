"""`radixserve doctor`: what it says and whether a server would start."""

from __future__ import annotations

import json
import logging
import pathlib
import socket
from collections.abc import Iterator

import pytest

from radixserve.cli import main
from radixserve.config.flags import configure
from radixserve.doctor import Finding, examine, parameters, would_start
from radixserve.models.spec import read_spec
from radixserve.weights import source
from radixserve.weights.load import open_checkpoint
from tests.e2e.test_serve import free_port


def findings(tiny: pathlib.Path, **settings) -> list[Finding]:
    return list(examine(configure(**({"model": tiny, "port": free_port()} | settings))))


def said(found: list[Finding], topic: str) -> str:
    return "\n".join(finding.said for finding in found if finding.topic == topic)


def test_a_machine_that_can_serve(tiny_model) -> None:
    found = findings(tiny_model, dtype="float32")
    assert would_start(found)
    assert "3 layers" in said(found, "model")
    assert "device: cpu" in said(found, "chosen")
    assert "a KV pool of" in said(found, "memory")
    assert {"python", "torch", "cores", "kernels", "cuda", "text", "keys"} <= {
        finding.topic for finding in found
    }


@pytest.mark.parametrize(
    ("settings", "topic", "why"),
    [
        ({"model": "/no/where"}, "model", "no folder"),
        ({"page_size": 0}, "settings", "--page-size"),
        ({"kv_tokens": 2**31 - 1}, "memory", "MiB are free"),
        ({"host": "no.such.host.invalid"}, "http", "no.such.host.invalid"),
        ({"api_key": ["a", "a"]}, "http", "twice"),
        ({"ssl_certfile": "/etc/hostname", "ssl_keyfile": "/etc/hostname"}, "http", "--ssl-cert"),
    ],
)
def test_what_keeps_a_server_from_starting(tiny_model, settings, topic, why) -> None:
    found = findings(tiny_model, **settings)
    assert not would_start(found)
    bad = [finding for finding in found if finding.level == "bad"]
    assert [finding.topic for finding in bad] == [topic]
    assert why in bad[0].said


def test_a_port_in_use(tiny_model) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        found = findings(tiny_model, port=taken.getsockname()[1])
    assert "cannot listen" in said(found, "http")
    assert not would_start(found)


def test_parameters_are_those_of_the_weights(tiny_model) -> None:
    origin = source.resolve(str(tiny_model))
    spec = read_spec(origin)
    counted = sum(
        tensor.numel() for name, tensor in open_checkpoint(origin).tensors() if tensor.dim() > 1
    )
    assert parameters(spec) == counted


@pytest.fixture
def own_log() -> Iterator[None]:
    """The command configures the log of its process, which is that of the tests here."""
    loggers = map(logging.getLogger, ("radixserve", "uvicorn", "asyncio", "opentelemetry"))
    kept = [(each, each.handlers[:], each.level, each.propagate) for each in loggers]
    yield
    for each, handlers, level, propagate in kept:
        each.handlers[:] = handlers
        each.setLevel(level)
        each.propagate = propagate


@pytest.mark.usefixtures("own_log")
def test_the_command(tiny_model, capsys) -> None:
    flags = ["doctor", "--model", str(tiny_model), "--port", str(free_port())]
    with pytest.raises(SystemExit) as ended:
        main(flags)
    assert ended.value.code == 0
    assert "a server would start" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main([*flags, "--json", "--chunk", "1"])
    assert ended.value.code == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[-1]["level"] == "bad"
    assert lines[-1]["topic"] == "settings"
