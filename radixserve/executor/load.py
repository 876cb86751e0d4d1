"""From a resolved config to an executor with its model and KV pool.

Owns: what is loaded in which order, and how much memory the pool gets. Must not know: the
scheduler, sockets.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import torch

from radixserve.attention import select
from radixserve.attention.base import NO_TENSORS, AttentionBackend
from radixserve.attention.terms import FP8
from radixserve.config.schema import Config
from radixserve.errors import ConfigError
from radixserve.executor import memory
from radixserve.executor.device import CudaDevice, Device
from radixserve.executor.device_executor import DeviceExecutor
from radixserve.executor.executor import Executor
from radixserve.executor.kv_pool import KvPool, bytes_per_token
from radixserve.kernels.cpu import library
from radixserve.kernels.cpu.library import Library
from radixserve.layers.operations import layer_operations
from radixserve.log import logger
from radixserve.models.compiled import CompiledParts
from radixserve.models.decoder import Decoder, attention_shape
from radixserve.models.registry import Model, load_model
from radixserve.models.spec import ModelSpec, read_spec
from radixserve.plan import PageId
from radixserve.sampling.batch import SamplingBatch
from radixserve.weights import source


@dataclass(frozen=True, slots=True)
class LoadedExecutor:
    """pages: that plans may name."""

    executor: Executor | DeviceExecutor
    pages: int
    context_len: int
    columns: int  # of the logits
    dtype: str
    shares_prefixes: bool = True  # plans may have groups of rows that share pages


def load_executor(config: Config, valid_ids: int) -> LoadedExecutor:
    """Load the model that a resolved config names. valid_ids: ids with a token.

    Raises ModelLoadError or ConfigError.
    """
    torch.set_num_threads(config.model.threads)
    device = _device(config)
    dtype: torch.dtype = getattr(torch, config.model.dtype)
    origin = source.resolve(config.model.model)
    spec = read_spec(origin)
    config = _attending(config, spec)
    native = _native(config)
    place = torch.device("cpu") if device is None else device.place
    try:
        model = load_model(origin, spec, dtype, place, native)
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"the weights of {config.model.model} in {config.model.dtype} do not fit on the GPU: "
            "take a smaller model or a smaller --dtype"
        ) from error
    logger.info("%s, %s on %s", spec.architecture, config.model.dtype, place)
    if config.model.torch_compile and isinstance(model, Decoder):
        model.parts = CompiledParts()
    if device is None:
        executor, pages = _on_host(config, model, spec, valid_ids, native)
    else:
        executor, pages = on_device(config, model, spec, valid_ids, device)
    if config.model.torch_compile:
        _warm_up(executor, config, spec)
    return LoadedExecutor(
        executor,
        pages,
        spec.context_len,
        spec.vocab_size,
        config.model.dtype,
        shares_prefixes=executor.shares_prefixes,
    )


def _device(config: Config) -> Device | None:
    if config.model.device == "cpu":
        return None
    if not torch.cuda.is_available():
        raise ConfigError(
            "--device cuda: torch sees no GPU (no driver, or CUDA_VISIBLE_DEVICES hides it); "
            "--device cpu runs without one"
        )
    return CudaDevice()


def _warm_up(executor: Executor | DeviceExecutor, config: Config, spec: ModelSpec) -> None:
    """Compile now and not in the first requests: a step of one token, and one of more."""
    for tokens in (2, 1):
        schedule = msgspec.structs.replace(config.schedule, max_running=1, token_budget=tokens)
        plan = memory.profile_plan(schedule, config.cache.page_size, spec.context_len)
        step = executor.launch(plan)
        step.sample()
        step.result()


def _attending(config: Config, spec: ModelSpec) -> Config:
    """The config with a backend that has what the model's attention needs."""
    lacking = [
        name
        for name, is_needed in (
            ("sliding windows", any(spec.windows)),
            ("capped scores", bool(spec.softcap)),
            ("attention sinks", spec.has_sinks),
            (f"activation {spec.activation}", spec.activation != "silu"),
        )
        if is_needed
    ]
    if config.model.attention != "native" or not lacking:
        return config
    logger.warning(
        "attention: cpu and not native, whose kernels have no %s, as this model needs",
        ", ".join(lacking),
    )
    model = msgspec.structs.replace(config.model, attention="cpu")
    return msgspec.structs.replace(config, model=model)


def kv_dtype(config: Config, dtype: torch.dtype, place: torch.device) -> torch.dtype:
    """Of the KV pool. dtype: the model's. A GPU without fp8 keeps its bits, which kernels read."""
    if config.cache.kv_dtype == "model":
        return dtype
    has_fp8 = place.type != "cuda" or torch.cuda.get_device_capability(place) >= (8, 9)
    return FP8 if has_fp8 else torch.uint8


def _attention(config: Config, model: Model, pool: KvPool, place: torch.device) -> AttentionBackend:
    backend = select.choose(config.model.attention, place)
    tensors = model.attention_tensors if isinstance(model, Decoder) else NO_TENSORS
    return backend(attention_shape(model.spec), config.cache.page_size, pool.k, pool.v, tensors)


def _native(config: Config) -> Library | None:
    if config.model.attention != "native":
        logger.info("kernels: torch (attention backend %s)", config.model.attention)
        return None
    native = library.load()
    if native is not None:
        native.set_threads(config.model.threads)
    return native


def _on_host(
    config: Config, model: Model, spec: ModelSpec, valid_ids: int, native: Library | None
) -> tuple[Executor | DeviceExecutor, int]:
    if native is not None:
        # Two pools of threads on the same cores wait for each other: of 32 rows torch's index took
        # 3 to 5 ms of a step beside the native threads, and 0.13 alone.
        torch.set_num_threads(1)
    shape, slots = attention_shape(spec), config.schedule.max_running
    place = torch.device("cpu")
    pages = memory.fit_pages(
        config.cache,
        bytes_per_token(shape, kv_dtype(config, model.dtype, place)),
        spec.context_len * slots,
        memory.free_memory(),
    )
    pool = _pool(config, model, spec, pages, place)
    attention = _attention(config, model, pool, place)
    sampling = SamplingBatch(slots, spec.vocab_size, place, valid_ids, native)
    # On the host Triton's kernels run under its interpreter alone.
    operations = layer_operations(has_kernels=config.model.attention == "triton")
    return Executor(model, pool, attention, sampling, slots, place, operations), pages


def on_device(
    config: Config, model: Model, spec: ModelSpec, valid_ids: int, device: Device
) -> tuple[Executor | DeviceExecutor, int]:
    """The executor, with a pool of what the model and a full step leave free, and its pages.

    One page more than plans may name is the scratch page of padding rows.
    """
    plan = memory.profile_plan(config.schedule, config.cache.page_size, spec.context_len)
    token_bytes = bytes_per_token(
        attention_shape(spec), kv_dtype(config, model.dtype, device.place)
    )

    def full_step() -> None:
        executor = _device_executor(
            config, model, spec, valid_ids, device, pages=len(plan.page_indices), profiles=True
        )
        step = executor.launch(plan)
        step.sample()
        step.result()

    try:
        # The first one compiles kernels, whose memory is not a step's.
        device.peak_memory(full_step)
        peak = device.peak_memory(full_step)
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            "the GPU has no memory for a full step beside the weights: lower --token-budget or "
            "--max-running"
        ) from error
    # The step's own pool is no part of what the next one leaves.
    own = (len(plan.page_indices) + 1) * config.cache.page_size * token_bytes
    peak = max(0, peak - own)
    left = memory.left_for_pool(device.free_memory(), peak, config.model.cuda_graphs)
    logger.info("memory: a full step takes %d MiB, %d MiB are left", peak >> 20, left >> 20)
    most = spec.context_len * config.schedule.max_running
    pages = memory.fit_pages(config.cache, token_bytes, most, left)
    try:
        return _device_executor(config, model, spec, valid_ids, device, pages=pages), pages
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"the GPU has no memory for a KV pool of {pages * config.cache.page_size} tokens: "
            "lower --memory-share or --kv-tokens"
        ) from error


def _device_executor(
    config: Config,
    model: Model,
    spec: ModelSpec,
    valid_ids: int,
    device: Device,
    *,
    pages: int,
    profiles: bool = False,
) -> DeviceExecutor:
    pool = _pool(config, model, spec, pages + 1, device.place)
    return DeviceExecutor(
        model,
        pool,
        _attention(config, model, pool, device.place),
        SamplingBatch(config.schedule.max_running, spec.vocab_size, device.place, valid_ids),
        device,
        scratch=PageId(pages),
        uses_graphs=config.model.cuda_graphs and not profiles,
    )


def _pool(config: Config, model: Model, spec: ModelSpec, pages: int, place: torch.device) -> KvPool:
    size = config.cache.page_size
    dtype = kv_dtype(config, model.dtype, place)
    prefault = config.cache.kv_prefault
    pool = KvPool(attention_shape(spec), pages, size, dtype, place, prefault=prefault)
    logger.info(
        "KV pool: %d tokens in pages of %d: %d MiB reserved%s (--kv-tokens or kv_tokens= sets it)",
        pages * size,
        size,
        pool.num_bytes >> 20,
        "" if prefault or place.type != "cpu" else ", taken as they fill",
    )
    return pool
