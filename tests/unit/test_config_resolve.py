"""resolve: "auto" becomes concrete, wrong values are refused by flag. No test asks this machine
but the one that says so."""

from __future__ import annotations

import logging
import math

import msgspec
import pytest

from radixserve.config.flags import configure, settings
from radixserve.config.machine import Machine, this_machine
from radixserve.config.resolve import BOUNDS, resolve
from radixserve.config.schema import Config
from radixserve.errors import ConfigError

PLAIN = Machine(cores=4)
SERVER = Machine(cores=32, cpu_features=frozenset({"avx2", "amx_bf16"}))
GPU = Machine(cores=32, cpu_features=frozenset({"avx2"}), has_gpu=True, has_native=True)
NUMBERS = [s for s in settings() if s.kind in (int, float)]


def fields_left_open(config):
    return [s.name for s in settings() if getattr(getattr(config, s.group), s.name) == "auto"]


def test_defaults_on_a_plain_machine():
    model = resolve(Config(), PLAIN).model
    assert (model.device, model.dtype, model.attention, model.threads) == (
        "cpu",
        "float32",
        "cpu",
        4,
    )
    assert model.served_name == "smollm2"


@pytest.mark.parametrize("machine", [PLAIN, SERVER, GPU])
def test_nothing_stays_auto_and_a_second_time_changes_nothing(machine):
    resolved = resolve(Config(), machine)
    assert fields_left_open(Config()) != []
    assert fields_left_open(resolved) == []
    assert resolve(resolved, machine) == resolved
    assert resolve(resolved, Machine(cores=1, has_gpu=machine.has_gpu)) == resolved


@pytest.mark.parametrize("feature", ["avx512_bf16", "amx_bf16", "bf16"])
def test_bfloat16_where_the_cpu_is_fast_at_it(feature):
    machine = Machine(cores=2, cpu_features=frozenset({feature}))
    assert resolve(Config(), machine).model.dtype == "bfloat16"


def test_what_was_asked_for_is_kept():
    asked = configure(
        dtype="float32",
        attention="reference",
        threads=3,
        served_name="mine",
        kv_tokens=64,
        shared_attention=False,
    )
    resolved = resolve(asked, SERVER)
    assert (resolved.model.dtype, resolved.model.attention) == ("float32", "reference")
    assert (resolved.model.threads, resolved.model.served_name) == (3, "mine")
    assert resolved.cache == msgspec.structs.replace(asked.cache, memory_share=0.5)
    assert (resolved.schedule, resolved.text, resolved.http) == (
        msgspec.structs.replace(asked.schedule, overlap="off"),
        asked.text,
        asked.http,
    )


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def test_each_choice_is_logged_with_its_reason(monkeypatch):
    """Whatever handlers earlier tests have left."""
    lines, logger = Lines(), logging.getLogger("radixserve")
    for name, value in {"handlers": [lines], "level": logging.INFO, "propagate": False}.items():
        monkeypatch.setattr(logger, name, value)
    logger.setLevel(logging.INFO)
    resolve(configure(kv_tokens=100), SERVER)
    assert lines.lines == [
        "device: cpu (no GPU here that torch was built for)",
        "dtype: bfloat16 (the CPU has amx_bf16)",
        "attention: cpu (no native kernels: no compiler at install, or RADIXSERVE_ISA=off)",
        "threads: 32 (physical cores that may be used)",
        "memory_share: 0.5 (the device is cpu)",
        "kv_tokens: 96 (100 rounded down to pages of 16)",
        "overlap: off (the device is cpu)",
    ]


def test_native_attention_where_its_library_loads():
    native = Machine(cores=2, has_native=True)
    resolved = resolve(Config(), native)
    assert (resolved.model.attention, resolved.schedule.shared_attention) == ("native", True)
    assert not resolve(configure(shared_attention=False), native).schedule.shared_attention
    for config, machine in ((configure(dtype="float16"), native), (Config(), PLAIN)):
        resolved = resolve(config, machine)
        assert (resolved.model.attention, resolved.schedule.shared_attention) == ("cpu", False)
    with pytest.raises(ConfigError, match="float16"):
        resolve(configure(attention="native", dtype="float16"), native)


def test_kv_tokens_zero_is_left_to_the_executor():
    assert resolve(Config(), PLAIN).cache.kv_tokens == 0


@pytest.mark.parametrize(("asked", "got"), [(16, 16), (17, 16), (31, 16), (32, 32), (4096, 4096)])
def test_kv_tokens_are_whole_pages(asked, got):
    assert resolve(configure(kv_tokens=asked), PLAIN).cache.kv_tokens == got


def test_every_number_has_bounds_and_a_default_inside():
    assert [s.name for s in NUMBERS] == list(BOUNDS)
    for setting in NUMBERS:
        low, high = BOUNDS[setting.name]
        assert low <= setting.default <= high


@pytest.mark.parametrize("setting", NUMBERS, ids=lambda s: s.name)
def test_numbers_out_of_bounds_are_refused_by_flag(setting):
    low, high = BOUNDS[setting.name]
    wrong = [low - 1, high + 1] if setting.kind is int else [low - 0.01, high * 1.1, math.nan]
    for value in wrong:
        with pytest.raises(ConfigError, match=f"{setting.flag} must be from .*, not {value}"):
            resolve(configure(**{setting.name: value}), PLAIN)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"tp_size": 2}, "--tp-size 2"),
        ({"kv_tokens": 15}, "--kv-tokens 15 .*--page-size 16"),
        ({"chunk": 15}, "--chunk 15 .*--page-size 16"),
        ({"page_size": 256, "chunk": 255}, "--chunk 255"),
        ({"memory_share": -0.1}, "--memory-share"),
        ({"memory_share": 0.96}, "--memory-share"),
        ({"port": 65536}, "--port"),
        ({"model": ""}, "--model must not be empty"),
        ({"host": ""}, "--host must not be empty"),
        ({"api_key": "\udc80"}, "--api-key"),
        ({"model": "a\0b"}, "--model"),
        ({"chat_template": "/no/such/file"}, "--chat-template /no/such/file"),
    ],
)
def test_what_cannot_run_is_refused_by_flag(overrides, message):
    with pytest.raises(ConfigError, match=message):
        resolve(configure(**overrides), PLAIN)


def test_a_gpu_is_taken_where_there_is_one():
    for config in (Config(), configure(device="cuda")):
        resolved = resolve(config, GPU)
        assert (resolved.model.device, resolved.model.dtype) == ("cuda", "bfloat16")
        assert (resolved.model.attention, resolved.schedule.shared_attention) == ("triton", True)
        assert resolved.schedule.overlap == "on"
    asked = resolve(configure(device="cuda", dtype="float16", overlap="off"), GPU)
    assert (asked.model.dtype, asked.schedule.overlap) == ("float16", "off")
    on_cpu = resolve(configure(device="cpu", overlap="on"), GPU)
    assert (on_cpu.model.device, on_cpu.schedule.overlap) == ("cpu", "on")


def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="--device cuda: there is no NVIDIA GPU"):
        resolve(configure(device="cuda"), SERVER)


@pytest.mark.parametrize("attention", ["cpu", "native"])
def test_attention_of_the_cpu_is_refused_on_a_gpu(attention):
    for device in ("auto", "cuda"):
        with pytest.raises(ConfigError, match=f"--attention {attention} needs --device cpu"):
            resolve(configure(device=device, attention=attention), GPU)


def test_smallest_pages_and_steps_are_allowed():
    config = configure(page_size=1, chunk=1, token_budget=1, max_running=1, kv_tokens=1, port=0)
    assert resolve(config, PLAIN).cache.kv_tokens == 1


def test_a_template_file_that_exists_is_taken(tmp_path):
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages }}")
    config = configure(chat_template=template)
    assert resolve(config, PLAIN).text.chat_template == str(template)


def test_this_machine_resolves():
    assert resolve(Config()) == resolve(Config(), this_machine())
    encoded = msgspec.json.encode(resolve(Config()))
    assert msgspec.json.decode(encoded, type=Config).model.threads >= 1
