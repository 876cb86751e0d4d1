"""`radixserve doctor`: what it says and whether a server would start."""

from __future__ import annotations

import json
import logging
import pathlib
import socket
import types
from collections.abc import Iterator

import pytest
import torch

from radixserve.cli import main
from radixserve.config import machine
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


def test_on_a_gpu_it_is_the_gpus_memory_that_counts(
    tiny_model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU of 3 GiB, of which 1 is free, played to torch and to the look at the machine."""
    properties = types.SimpleNamespace(total_memory=3 << 30, major=9, minor=0, name="H")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1 << 30, 3 << 30))
    monkeypatch.setattr(machine, "has_gpu", lambda *_: True)
    found = findings(tiny_model, dtype="bfloat16", kv_dtype="fp8_e4m3", max_running=1024)
    assert would_start(found)
    assert "GPU 0: H, 3 GiB, sm_90" in said(found, "cuda")
    assert "1024 MiB free on the GPU" in said(found, "memory")
    assert "less what a step takes" in said(found, "memory")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1 << 10, 3 << 30))
    assert not would_start(findings(tiny_model))


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
