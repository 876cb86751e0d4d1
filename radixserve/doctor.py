"""What a server would find on this machine, what it would choose, and whether it would start.

Owns: the list of things to look at. Must not know: how any of them works; it asks those who do, and
starts nothing.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import platform
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from radixserve import env
from radixserve.api.server import check_http
from radixserve.cache import is_compiled
from radixserve.config.machine import this_machine
from radixserve.config.resolve import resolve
from radixserve.config.schema import Config
from radixserve.errors import RadixServeError
from radixserve.log import logger
from radixserve.models.spec import ModelSpec, read_spec
from radixserve.text.renderer import Renderer
from radixserve.weights import source

Level = Literal["ok", "note", "bad"]

_PACKAGES = ("torch", "triton", "xgrammar", "tokenizers", "prometheus_client")
_NEEDED = frozenset({"torch", "xgrammar", "tokenizers", "prometheus_client"})
_FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "neon", "asimd", "bf16")
_SPARE_FILES = 128  # descriptors that a front needs beside those of its clients


@dataclass(frozen=True, slots=True)
class Finding:
    """level: bad keeps a server from starting; a note is worth knowing."""

    level: Level
    topic: str
    said: str


def examine(config: Config) -> Iterator[Finding]:
    """Findings about this machine and a server with that configuration, as they are made."""
    yield from _software()
    yield from _hardware()
    chosen: list[str] = []
    try:
        with _overheard(chosen):
            config = resolve(config)
    except RadixServeError as error:
        yield Finding("bad", "settings", str(error))
        return
    for each in chosen:
        yield Finding("ok", "chosen", each)
    yield from _model(config)
    yield from _http(config)


def would_start(findings: list[Finding]) -> bool:
    return all(finding.level != "bad" for finding in findings)


def _software() -> Iterator[Finding]:
    yield Finding("ok", "python", f"{platform.python_version()} on {platform.platform()}")
    for name in _PACKAGES:
        try:
            yield Finding("ok", name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding("bad" if name in _NEEDED else "note", name, "is not installed")


def _hardware() -> Iterator[Finding]:
    machine = this_machine()
    features = [name for name in _FEATURES if name in machine.cpu_features]
    known = f", with {' '.join(features)}" if features else ""
    yield Finding("ok", "cores", f"{machine.cores} that this process may use{known}")
    if machine.has_native:
        yield Finding("ok", "kernels", "the native CPU kernels are built and load")
    else:
        why = (
            "switched off by RADIXSERVE_ISA" if env.isa() == "off" else "not built, or do not load"
        )
        hint = "" if shutil.which("c++") else "; there is no C++ compiler to build them with"
        yield Finding("note", "kernels", f"the native CPU kernels are {why}; torch computes{hint}")
    how = "is compiled" if is_compiled() else "runs as Python (RADIXSERVE_COMPILE=1, see setup.py)"
    yield Finding("ok", "cache", f"the radix tree {how}")
    yield from _torch()


def _torch() -> Iterator[Finding]:
    try:
        import torch
    except (ImportError, OSError) as error:
        yield Finding("bad", "torch", f"does not load: {error}")
        return
    if not torch.cuda.is_available():
        built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
        yield Finding("ok", "cuda", f"no GPU that torch sees; it is built {built}")
        return
    for index in range(torch.cuda.device_count()):
        seen = torch.cuda.get_device_properties(index)
        size = f"{seen.total_memory >> 30} GiB, sm_{seen.major}{seen.minor}"
        yield Finding("ok", "cuda", f"GPU {index}: {seen.name}, {size}, CUDA {torch.version.cuda}")


def _model(config: Config) -> Iterator[Finding]:
    try:
        origin = source.resolve(config.model.model)
        yield Finding("ok", "model", f"{config.model.model}: {origin.kind} {origin.path}")
        spec = read_spec(origin)
        yield Finding("ok", "model", _described(spec))
        renderer = Renderer.load(origin, config.text)
    except RadixServeError as error:
        yield Finding("bad", "model", str(error))
        return
    if renderer.chat.available:
        stable = "" if renderer.chat.prefix_stable else ", which rewrites earlier messages"
        yield Finding(
            "ok", "text", f"{renderer.tokenizer.vocab_size} tokens, a chat template{stable}"
        )
    else:
        yield Finding("note", "text", "no chat template: /v1/chat/completions answers 400")
    yield from _memory(config, spec)


def _described(spec: ModelSpec) -> str:
    return (
        f"{spec.architecture}, {parameters(spec) / 1e6:.0f} M parameters, {spec.num_layers} "
        f"layers, context of {spec.context_len} tokens"
    )


def parameters(spec: ModelSpec) -> int:
    """Of a dense decoder, without norms and biases.

    hidden 64, 2 layers, 4 heads of 16 on 2 KV heads, mlp of 128, 100 rows, tied:
    100 * 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128) = 80,128.
    """
    qo, kv = spec.num_qo_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    layer = spec.hidden_size * (2 * qo + 2 * kv + 3 * spec.intermediate_size)
    heads = 2 if spec.is_tied is False else 1
    return heads * spec.vocab_size * spec.hidden_size + spec.num_layers * layer


def _memory(config: Config, spec: ModelSpec) -> Iterator[Finding]:
    try:
        import torch
    except (ImportError, OSError):
        return  # told already
    from radixserve.executor.kv_pool import bytes_per_token
    from radixserve.executor.load import kv_dtype
    from radixserve.executor.memory import fit_pages, free_memory
    from radixserve.models.decoder import attention_shape

    dtype: torch.dtype = getattr(torch, config.model.dtype)
    place = torch.device(config.model.device)
    free, weights = free_memory(), parameters(spec) * dtype.itemsize
    where = ""
    if place.type == "cuda":
        free, where = torch.cuda.mem_get_info(place)[0], " on the GPU"
    said = f"{free >> 20} MiB free{where}; the weights take up to {weights >> 20} MiB"
    if weights > free:
        yield Finding("bad", "memory", said)
        return
    yield Finding("ok", "memory", said)
    token = bytes_per_token(attention_shape(spec), kv_dtype(config, dtype, place))
    most = spec.context_len * config.schedule.max_running
    try:
        tokens = fit_pages(config.cache, token, most, free - weights) * config.cache.page_size
    except RadixServeError as error:
        yield Finding("bad", "memory", str(error))
        return
    about = ", less what a step takes" if where else ""
    said = f"a KV pool of {tokens} tokens, {tokens * token >> 20} MiB{about}"
    yield Finding("ok", "memory", said)
    if tokens < spec.context_len:
        yield Finding(
            "note",
            "memory",
            f"less than one context of {spec.context_len}: prompts end at {tokens}",
        )


def _http(config: Config) -> Iterator[Finding]:
    http = config.http
    try:
        keys = check_http(http)
    except RadixServeError as error:
        yield Finding("bad", "http", str(error))
        return
    yield Finding("ok", "http", f"{http.host}:{http.port} can be listened on")
    if not keys:
        level: Level = "ok" if _is_local(http.host) else "note"
        yield Finding(level, "keys", "none: whoever reaches the port may use the server")
    else:
        yield Finding("ok", "keys", f"{keys} can be read")
    yield from _limits(http.max_streams)
    with contextlib.suppress(OSError), tempfile.TemporaryDirectory(prefix="radixserve-doctor-"):
        return
    yield Finding("bad", "files", f"{tempfile.gettempdir()} cannot be written: sockets lie there")


def _limits(streams: int) -> Iterator[Finding]:
    try:
        import resource
    except ImportError:
        return  # not a Unix
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 < soft < streams + _SPARE_FILES:
        said = f"{soft} open files allowed, --max-streams is {streams}: raise ulimit -n"
        yield Finding("note", "files", said)


def _is_local(host: str) -> bool:
    with contextlib.suppress(OSError):
        return all(info[4][0] in ("127.0.0.1", "::1") for info in socket.getaddrinfo(host, None))
    return False


class _Listener(logging.Handler):
    def __init__(self, take: Callable[[str], None]) -> None:
        super().__init__()
        self._take = take

    def emit(self, record: logging.LogRecord) -> None:
        self._take(record.getMessage())


@contextlib.contextmanager
def _overheard(lines: list[str]) -> Iterator[None]:
    """What is logged meanwhile goes into lines, and nowhere else."""
    before, level = logger.handlers[:], logger.level
    logger.handlers[:] = [_Listener(lines.append)]
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.handlers[:] = before
        logger.setLevel(level)
