"""The table of operations: which kernels are compiled, with which types, constants and shapes.

Owns: the rows that are proven ahead of time: a pairwise cover of the options of attention (any two
values of two options meet in a row), each shipped model's own shapes, and the types of the smaller
operations. Must not know: how a kernel is compiled (triton/compile.py), what the limits are. A row
builds the Launch that an entry function would start, on empty tensors. Mixture of experts and
quantised matmuls get their rows in `all_specs` with their kernels.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from radixserve.kernels.triton.apply_mask import apply_mask_launch
from radixserve.kernels.triton.attend_decode import decode_launches
from radixserve.kernels.triton.attend_extend import DeviceWork, extend_launch
from radixserve.kernels.triton.copy_kv import copy_launch
from radixserve.kernels.triton.gated import gated_launch
from radixserve.kernels.triton.launch import Launch
from radixserve.kernels.triton.merge import empty_parts, merge_launch
from radixserve.kernels.triton.rms_norm import rms_norm_launch
from radixserve.kernels.triton.sample import BLOCK, Draws, sample_launches
from radixserve.kernels.triton.store_kv import rotary_store_launch, store_launch
from radixserve.kernels.triton.terms import Terms, tile_for

ARCHITECTURES = (80, 90, 100)
FIRST_WITH_FP8 = 89

Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Spec:
    """A row. build: the launch for an architecture. has_products: attention in 16 bits, which
    tensor cores must multiply. is_hot: in every layer of a step, so that nothing may be spilled;
    sampling runs once a step, and float32 is for tests."""

    name: str
    op: str
    build: Callable[[int], Launch]
    has_products: bool = False

    @property
    def is_hot(self) -> bool:
        return self.has_products or self.op not in ("attend_decode", "attend_extend", "sample")


def everywhere(build: Callable[..., Launch], *arguments: Any) -> Callable[[int], Launch]:
    """For a launch that is the same on every architecture."""
    return lambda _: build(*arguments)


ATTENTION: dict[str, tuple[Any, ...]] = {
    "kernel": ("decode", "extend 16", "extend 64", "extend 128"),
    "dtype": (torch.bfloat16, torch.float16, torch.float32),
    "head_dim": (64, 96, 128, 256),
    "page_size": (1, 16, 64),
    "group": (1, 4, 7, 8),
    "is_fp8": (False, True),
    "window": (0, 4096),
    "softcap": (0.0, 50.0),
    "has_sinks": (False, True),
    "has_parts": (False, True),
}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What kernels see of a model."""

    name: str
    hidden_size: int
    inner_size: int
    num_qo_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    has_qk_norm: bool = False
    window: int = 0


MODELS = (
    ModelShape("SmolLM2-135M", 576, 1536, 9, 3, 64, 49152),
    ModelShape("Llama-3-8B", 4096, 14336, 32, 8, 128, 128256),
    ModelShape("Mistral-7B-v0.1", 4096, 14336, 32, 8, 128, 32000, window=4096),
    ModelShape("Qwen2.5-7B", 3584, 18944, 28, 4, 128, 152064),
    ModelShape("Qwen3-0.6B", 1024, 3072, 16, 8, 128, 151936, has_qk_norm=True),
)


def pairwise(options: Mapping[str, tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Few combinations in which any two values of two options meet, each chosen to meet most.

    The product is walked in a fixed order, so the cover is the same every time.
    """
    rows = list(product(options))
    bits: dict[Any, int] = {}
    pairs = []
    for row in rows:
        met = itertools.combinations(row.items(), 2)
        pairs.append(sum(1 << bits.setdefault(pair, len(bits)) for pair in met))
    missing = (1 << len(bits)) - 1
    chosen = []
    while missing:
        best = max(range(len(rows)), key=lambda at: (pairs[at] & missing).bit_count())
        missing &= ~pairs[best]
        chosen.append(rows[best])
    return chosen


def product(options: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """Every combination that there is."""
    for values in itertools.product(*options.values()):
        row = dict(zip(options, values))
        if not (row["is_fp8"] and row["dtype"] == torch.float32):
            yield row


def attention_spec(options: Options, num_kv_heads: int = 8, name: str = "") -> Spec:
    """The row of one combination of ATTENTION."""
    shown = ", ".join(f"{key} {str(value).split('.')[-1]}" for key, value in options.items())
    op = "attend_decode" if options["kernel"] == "decode" else "attend_extend"
    has_products = options["dtype"] != torch.float32
    build = partial(attention_launch, options, num_kv_heads)
    return Spec(f"{name or 'attention'}: {shown}", op, build, has_products)


def attention_launch(options: Options, num_kv_heads: int, arch: int) -> Launch:
    """The kernel of a combination of ATTENTION as it is launched on an architecture."""
    dtype, head_dim = options["dtype"], options["head_dim"]
    heads = num_kv_heads * options["group"]
    cache_type = _cache_type(options["is_fp8"], dtype, arch)
    q = torch.empty(2, heads, head_dim, dtype=dtype)
    cache = torch.empty(2, options["page_size"], num_kv_heads, head_dim, dtype=cache_type)
    scale = torch.ones(num_kv_heads)
    terms = Terms(
        scale=head_dim**-0.5,
        window=options["window"],
        softcap=options["softcap"],
        sinks=torch.zeros(heads) if options["has_sinks"] else None,
        kv_scales=(scale, scale) if options["is_fp8"] else None,
    )
    array = torch.ones(2, dtype=torch.int32)
    splits = 2 if options["has_parts"] else 1
    parts = empty_parts(4, q) if options["has_parts"] else None
    caches = (q, cache, cache)
    if options["kernel"] == "decode":
        tables = (array, array, array)
        return decode_launches(*caches, *tables, terms, q, parts, splits, arch)[0]
    rows = int(options["kernel"].split()[1])
    tile = tile_for(max(rows, options["group"]), head_dim, dtype, arch)
    work = DeviceWork(
        positions=array,
        indices=array,
        firsts=array,
        counts=array,
        queries=array,
        parts=array,
        tables=array,
        begins=array,
        ends=array,
        clears=array,
        merged=array,
        merge_indptr=array,
        part_count=splits - 1,
        large=2,
    )
    return extend_launch(*caches, work, terms, tile, q, parts, processors=132)


def model_specs(model: ModelShape) -> Iterator[Spec]:
    """What a bfloat16 step of a model launches."""
    plain = {
        "dtype": torch.bfloat16,
        "head_dim": model.head_dim,
        "page_size": 16,
        "group": model.num_qo_heads // model.num_kv_heads,
        "window": model.window,
        "softcap": 0.0,
        "has_sinks": False,
        "has_parts": True,
    }
    # The pool in fp8 is Llama's and Mistral's here: their heads are those of most models.
    for is_fp8 in (False, True) if model.num_kv_heads == 8 and model.head_dim == 128 else (False,):
        for kernel in ("decode", "extend 128"):
            row = {"kernel": kernel, **plain, "is_fp8": is_fp8}
            yield attention_spec(row, model.num_kv_heads, model.name)
        name = f"{model.name}: rotary_store{' fp8' if is_fp8 else ''}"
        yield Spec(name, "store_kv", partial(_rotary, model, is_fp8))
    yield Spec(f"{model.name}: rms_norm", "rms_norm", everywhere(_norm, model.hidden_size, True))
    yield Spec(f"{model.name}: decide", "sample", everywhere(_sample, model.vocab_size, 1))


def _cache_type(is_fp8: bool, dtype: torch.dtype, arch: int) -> torch.dtype:
    if not is_fp8:
        return dtype
    return torch.float8_e4m3fn if arch >= FIRST_WITH_FP8 else torch.uint8


def _empty(*size: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(size, dtype=dtype)


def _rotary(model: ModelShape, is_fp8: bool, arch: int) -> Launch:
    heads = _empty(2, model.num_qo_heads + 2 * model.num_kv_heads, model.head_dim)
    kind = _cache_type(is_fp8, torch.bfloat16, arch)
    cache = _empty(2, 16, model.num_kv_heads, model.head_dim, dtype=kind)
    scale = torch.ones(model.num_kv_heads)
    angles = _empty(2, model.head_dim // 2, dtype=torch.float32)
    norm = _empty(model.head_dim) if model.has_qk_norm else None
    slots = torch.ones(2, dtype=torch.int32)
    return rotary_store_launch(
        heads, angles, angles, (cache, cache), slots, norms=(norm, norm), eps=1e-6,
        scales=(scale, scale) if is_fp8 else None,
    )  # fmt: skip


def _norm(size: int, has_residual: bool, dtype: torch.dtype = torch.bfloat16) -> Launch:
    x = _empty(2, size, dtype=dtype)
    return rms_norm_launch(x, _empty(size, dtype=dtype), 1e-5, x if has_residual else None, x, x)


def _sample(vocab: int, which: int) -> Launch:
    logits = _empty(2, vocab, dtype=torch.float32)
    blocks = _empty(2, -(-vocab // BLOCK), dtype=torch.float32)
    wide, whole = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.int64)
    draws = Draws(
        temperature=_empty(2, dtype=torch.float32),
        top_k=whole.int(),
        top_p=wide,
        min_p=wide,
        seeds=whole,
        positions=whole,
        is_greedy=whole.bool(),
    )
    return sample_launches(logits, draws, vocab, blocks, blocks, whole.int())[which]


def _store(dtype: torch.dtype, is_fp8: bool, arch: int) -> Launch:
    cache = _empty(2, 16, 8, 128, dtype=_cache_type(is_fp8, dtype, arch))
    scales = (torch.ones(8), torch.ones(8)) if is_fp8 else None
    k = _empty(2, 8, 128, dtype=dtype)
    return store_launch(cache, cache, k, k, torch.ones(2, dtype=torch.int32), scales)


def _gated(dtype: torch.dtype, is_gelu: bool) -> Launch:
    return gated_launch(_empty(2, 28672, dtype=dtype), _empty(2, 14336, dtype=dtype), is_gelu)


def _copy() -> Launch:
    table, orders = torch.ones(64, dtype=torch.int64), torch.ones(2, 3, dtype=torch.int32)
    return copy_launch(_empty(2, 16, 8, 128), table, orders)


def _mask(has_rows: bool) -> Launch:
    bits, rows = torch.ones(2, 4008, dtype=torch.int32), torch.ones(2, dtype=torch.int32)
    logits = _empty(2, 128256, dtype=torch.float32)
    return apply_mask_launch(logits, bits, rows if has_rows else None)


def _merge(head_dim: int, dtype: torch.dtype, has_splits: bool) -> Launch:
    out = _empty(2, 8, head_dim, dtype=dtype)
    sinks = torch.zeros(8) if has_splits else None
    if has_splits:
        return merge_launch(empty_parts(4, out), out, sinks, splits=2)
    array = torch.ones(2, dtype=torch.int32)
    return merge_launch(empty_parts(4, out), out, sinks, tokens=array, indptr=array)


def small_specs() -> Iterator[Spec]:
    """The types and options of everything that is not attention."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        kind = str(dtype).split(".")[1]
        yield Spec(f"store_kv {kind}", "store_kv", partial(_store, dtype, False))
        yield Spec(f"silu_mul {kind}", "silu_mul", everywhere(_gated, dtype, False))
        yield Spec(f"rms_norm {kind}", "rms_norm", everywhere(_norm, 4096, False, dtype))
    yield Spec("store_kv fp8", "store_kv", partial(_store, torch.bfloat16, True))
    yield Spec("gelu_mul bfloat16", "gelu_mul", everywhere(_gated, torch.bfloat16, True))
    yield Spec("rms_norm 16384", "rms_norm", everywhere(_norm, 16384, True))
    yield Spec("copy_kv", "copy_kv", everywhere(_copy))
    yield Spec("apply_mask", "apply_mask", everywhere(_mask, False))
    yield Spec("apply_mask of rows", "apply_mask", everywhere(_mask, True))
    yield Spec("scan", "sample", everywhere(_sample, 128256, 0))
    yield Spec("merge splits", "merge", everywhere(_merge, 128, torch.bfloat16, True))
    yield Spec("merge parts", "merge", everywhere(_merge, 256, torch.float16, False))
    yield Spec("merge float32", "merge", everywhere(_merge, 96, torch.float32, False))


def all_specs() -> list[Spec]:
    """The table, the same at every call."""
    models = [spec for model in MODELS for spec in model_specs(model)]
    return [*map(attention_spec, pairwise(ATTENTION)), *models, *small_specs()]
