"""From what was asked to what will run: every "auto" becomes concrete here, once.

Owns: the ranges of all numbers, rules between settings, and the choice behind "auto" and 0, each
logged with its reason. kv_tokens 0 stays 0: only the executor, with the model loaded, knows the
free memory. Must not know: torch.
"""

from __future__ import annotations

import pathlib
from typing import TypeVar

import msgspec

from radixserve.config.flags import Setting, settings
from radixserve.config.machine import Machine, this_machine
from radixserve.config.schema import CacheConfig, Config, ModelConfig, ScheduleConfig
from radixserve.errors import ConfigError
from radixserve.ints import round_down
from radixserve.log import logger

BOUNDS: dict[str, tuple[float, float]] = {
    "threads": (0, 1024),
    "page_size": (1, 256),
    "kv_tokens": (0, 2**31 - 1),
    "memory_share": (0.0, 0.95),
    "warm_share": (0.0, 1.0),
    "program_share": (0.0, 1.0),
    "program_seconds": (0.0, 86400.0),
    "max_running": (1, 65536),
    "max_waiting": (1, 2**31 - 1),
    "token_budget": (1, 2**20),
    "chunk": (1, 2**20),
    "max_overtakes": (0, 2**31 - 1),
    "program_overtakes": (0, 2**31 - 1),
    "max_programs": (1, 2**31 - 1),
    "reserve": (0.0, 1.0),
    "step_retries": (0, 100),
    "step_timeout_s": (0.0, 86400.0),
    "compile_seconds": (0.1, 3600.0),
    "mask_seconds": (0.001, 60.0),
    "cache_mib": (0, 2**20),
    "max_compiling": (1, 2**20),
    "compiler_idle_s": (0.0, 86400.0),
    "tp_size": (1, 1024),
    "max_prompt_tokens": (0, 2**31 - 1),
    "port": (0, 65535),
    "max_body": (1024, 2**40),
    "body_timeout": (0.0, 86400.0),
    "max_streams": (0, 2**31 - 1),
    "request_timeout": (0.0, 7 * 86400.0),
    "program_steps": (1, 2**31 - 1),
    "program_calls": (1, 2**31 - 1),
    "program_branches": (1, 2**31 - 1),
    "program_text": (0, 2**31 - 1),
    "program_timeout": (0.0, 7 * 86400.0),
    "reader_timeout": (0.0, 86400.0),
    "default_max_tokens": (1, 2**31 - 1),
    "store_responses": (0, 10_000_000),
    "store_mib": (1, 2**20),
    "store_seconds": (1.0, 366 * 86400.0),
    "grace": (0.0, 3600.0),
}
"""Smallest and largest value of every number in config.schema, both allowed."""

Chosen = TypeVar("Chosen", str, int, float)

_FAST_BFLOAT16 = ("amx_bf16", "avx512_bf16", "bf16")


def resolve(config: Config, machine: Machine | None = None) -> Config:
    """The Config that will run; resolving it again changes nothing.

    machine: what "auto" is decided by; None looks at this one. ConfigError names the flag at fault
    and what would be right.
    """
    for setting in settings():
        _check(setting, getattr(getattr(config, setting.group), setting.name))
    _check_together(config)
    machine = machine or this_machine()
    resolved_model = _resolve_model(config.model, config.cache.kv_dtype, machine)
    return msgspec.structs.replace(
        config,
        model=resolved_model,
        cache=_resolve_cache(config.cache, resolved_model),
        schedule=_resolve_schedule(config.schedule, resolved_model),
    )


def _check(setting: Setting, value: str | int | float | tuple[str, ...]) -> None:
    if isinstance(value, tuple):
        for each in value:
            _check_text(setting, each)
            if not each:
                raise ConfigError(f"{setting.flag} must not be empty")
    elif isinstance(value, str):
        _check_text(setting, value)
    elif not isinstance(value, bool):
        low, high = BOUNDS[setting.name]
        if not low <= value <= high:  # also catches NaN
            raise ConfigError(f"{setting.flag} must be from {low} to {high}, not {value}")


def _check_text(setting: Setting, value: str) -> None:
    if not value and setting.name in {"model", "host"}:
        raise ConfigError(f"{setting.flag} must not be empty")
    if "\0" in value or any(0xD800 <= ord(char) <= 0xDFFF for char in value):
        raise ConfigError(f"{setting.flag} is no clean Unicode text: {value!r}")


def _check_together(config: Config) -> None:
    page_size, kv_tokens = config.cache.page_size, config.cache.kv_tokens
    if 0 < kv_tokens < page_size:
        raise ConfigError(f"--kv-tokens {kv_tokens} holds no page of --page-size {page_size}")
    if config.schedule.chunk < page_size:
        raise ConfigError(
            f"--chunk {config.schedule.chunk} is less than --page-size {page_size}: "
            "chunks end on page borders"
        )
    if config.cache.warm and not config.cache.prefix_cache:
        raise ConfigError("--warm keeps prompts in the prefix cache, which --no-prefix-cache drops")
    if config.parallel.tp_size != 1:
        raise ConfigError(f"--tp-size {config.parallel.tp_size}: only 1 is supported so far")
    if bool(config.http.ssl_certfile) != bool(config.http.ssl_keyfile):
        raise ConfigError("--ssl-certfile and --ssl-keyfile go together")
    http = config.http
    for flag, file in (
        ("--chat-template", config.text.chat_template),
        ("--warm", config.cache.warm),
        ("--ssl-certfile", http.ssl_certfile),
        ("--ssl-keyfile", http.ssl_keyfile),
        ("--api-key-file", http.api_key_file),
    ):
        if file and not pathlib.Path(file).is_file():
            raise ConfigError(f"{flag} {file}: there is no such file")


def _resolve_model(model: ModelConfig, kv_dtype: str, machine: Machine) -> ModelConfig:
    chosen: dict[str, str | int] = {}
    if model.device == "auto":
        chosen["device"] = _choose("device", *_fast_device(machine))
    device = str(chosen.get("device", model.device))
    _check_device(model, device, machine)
    if model.dtype == "auto":
        chosen["dtype"] = _choose("dtype", *_fast_dtype(device, machine))
    dtype = str(chosen.get("dtype", model.dtype))
    if model.attention == "auto":
        fast = _fast_attention(device, dtype, kv_dtype, machine)
        chosen["attention"] = _choose("attention", *fast)
    if model.attention == "native" and dtype == "float16":
        raise ConfigError("--attention native has no --dtype float16: float32 or bfloat16")
    if model.torch_compile and chosen.get("attention", model.attention) == "native":
        raise ConfigError(
            "--torch-compile has no effect on --attention native: add --attention cpu"
        )
    _check_kv_dtype(str(chosen.get("attention", model.attention)), kv_dtype, device, dtype)
    if model.threads == 0:
        chosen["threads"] = _choose("threads", machine.cores, "physical cores that may be used")
    if not model.served_name:
        chosen["served_name"] = model.model
    return msgspec.structs.replace(model, **chosen)


def _fast_device(machine: Machine) -> tuple[str, str]:
    if machine.has_gpu:
        return "cuda", "there is a GPU"
    return "cpu", "no GPU here that torch was built for"


def _check_device(model: ModelConfig, device: str, machine: Machine) -> None:
    if device == "cuda" and not machine.has_gpu:
        raise ConfigError(
            "--device cuda: there is no NVIDIA GPU here, or the torch that is installed was built "
            "without CUDA; --device cpu runs without one"
        )
    if device == "cuda" and model.attention in ("cpu", "native"):
        raise ConfigError(f"--attention {model.attention} needs --device cpu, not cuda")


def _check_kv_dtype(attention: str, kv_dtype: str, device: str, dtype: str) -> None:
    if kv_dtype == "model":
        return
    if attention == "native":
        raise ConfigError(f"--attention native has no --kv-dtype {kv_dtype}: cpu has it")
    if device == "cuda" and dtype == "float32":
        raise ConfigError(f"--kv-dtype {kv_dtype} on cuda needs --dtype bfloat16 or float16")


def _fast_attention(device: str, dtype: str, kv_dtype: str, machine: Machine) -> tuple[str, str]:
    if device == "cuda":
        return "triton", "the device is cuda"
    if kv_dtype != "model":
        return "cpu", f"the native kernels have no --kv-dtype {kv_dtype}"
    if not machine.has_native:
        return "cpu", "no native kernels: no compiler at install, or RADIXSERVE_ISA=off"
    if dtype == "float16":
        return "cpu", "the native kernels have no float16"
    return "native", "the native kernels load"


def _fast_dtype(device: str, machine: Machine) -> tuple[str, str]:
    if device == "cuda":
        return "bfloat16", "the device is cuda"
    fast = [name for name in _FAST_BFLOAT16 if name in machine.cpu_features]
    if fast:
        return "bfloat16", f"the CPU has {fast[0]}"
    return "float32", "the CPU has no fast bfloat16"


def _resolve_cache(cache: CacheConfig, model: ModelConfig) -> CacheConfig:
    share = cache.memory_share
    if not share:
        # A host's memory is other programs', too.
        share = 0.9 if model.device == "cuda" else 0.5
        _choose("memory_share", share, f"the device is {model.device}")
    whole = round_down(cache.kv_tokens, cache.page_size)
    if whole != cache.kv_tokens:
        reason = f"{cache.kv_tokens} rounded down to pages of {cache.page_size}"
        _choose("kv_tokens", whole, reason)
    return msgspec.structs.replace(cache, kv_tokens=whole, memory_share=share)


def _resolve_schedule(schedule: ScheduleConfig, model: ModelConfig) -> ScheduleConfig:
    shares = schedule.shared_attention and model.attention in ("native", "triton")
    overlap = schedule.overlap
    if overlap == "auto":
        overlap = "on" if model.device == "cuda" else "off"
        _choose("overlap", overlap, f"the device is {model.device}")
    return msgspec.structs.replace(schedule, shared_attention=shares, overlap=overlap)


def _choose(name: str, value: Chosen, reason: str) -> Chosen:
    logger.info("%s: %s (%s)", name, value, reason)
    return value
