"""Drawing token ids: temperature, top-k, top-p, min-p, one counted uniform a row.

Owns: two kernels: one looks once at all logits in parallel, one decides each row. Must not know:
penalties, grammars, requests. What the filters mean is kernels.reference.sample; the uniform has
the bits of sampling.random.

Nothing is sorted: a filter keeps what is above some logit, which is found by asking, for four
logits at a time, how many tokens (top-k) or how much mass (top-p) lie at or above each; 32 bits of
a float take eleven such looks, and blocks of tokens whose best is below all eight are skipped. The
draw inverts the cumulated mass in id order. The mass of a block is summed in float32 and of blocks
in float64, so ids are those of the CPU unless the uniform lies within 1e-6 of a border (or top_p
that near to the mass of a set of best tokens).

k rows over a vocabulary of v: 4 * k * v bytes for the first look, as much again for a few of the
looks of a filter, what a row's best blocks hold for the others; about 6 * k * v FLOPs a look.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from radixserve.kernels.triton.launch import Argument, Launch, power_of_2

BLOCK = 1024  # tokens of a block
PIVOTS = 4
LEAST_KEY: tl.constexpr = tl.constexpr(-2139095041)  # of -inf
NONE: tl.constexpr = tl.constexpr(2**31 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Tensors over rows, on the device. A greedy row takes its best and reads nothing else here.

    temperature: float32, above 0. top_k: int32, 0 is off. top_p, min_p: float64. seeds: int64, the
    bits of the uint64. positions: int64, the counter of the draw. is_greedy: bool.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seeds: torch.Tensor
    positions: torch.Tensor
    is_greedy: torch.Tensor


@triton.jit
def load_scaled(logits_ptr, ids, vocab, temperature):
    """Logits over the temperature, rounded as on the CPU, without a negative zero; -inf outside."""
    value = tl.load(logits_ptr + ids, mask=ids < vocab, other=float("-inf"))
    value = tl.div_rn(value, tl.zeros_like(value) + temperature)
    return tl.where(value == 0.0, 0.0, value)


@triton.jit
def key_of(value):
    """int32 in the order of float32."""
    bits = value.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def scan_kernel(
    logits_ptr,
    temperature_ptr,
    greedy_ptr,
    best_ptr,
    mass_ptr,
    logits_stride,
    vocab,
    BLOCK: tl.constexpr,
):
    """Program (row, block): the block's best logit, and its mass in units of that one."""
    row = tl.program_id(0).to(tl.int64)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    temperature = tl.where(tl.load(greedy_ptr + row) != 0, 1.0, tl.load(temperature_ptr + row))
    value = load_scaled(logits_ptr + row * logits_stride, ids, vocab, temperature)
    best = tl.max(value, 0)
    base = tl.where(tl.abs(best) == float("inf"), 0.0, best)
    mass = tl.sum(tl.exp(value - base), 0)
    # A NaN shows as a best of infinity, which decide_kernel refuses.
    is_nan = tl.max((value != value).to(tl.int32), 0) != 0
    place = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(best_ptr + place, tl.where(is_nan, float("inf"), best))
    tl.store(mass_ptr + place, mass)


@triton.jit
def at_or_above(
    pivots, logits_ptr, best_ptr, best, vocab, temperature, blocks, BLOCK: tl.constexpr
):
    """How many tokens of a row have a key of at least each pivot, and their mass in units of the
    best. pivots: [n] int64. Returns [n] int32 and [n] float64."""
    count = tl.zeros_like(pivots).to(tl.int32)
    mass = tl.zeros_like(pivots).to(tl.float64)
    lowest = tl.min(pivots, 0)
    for block in range(0, blocks):
        if key_of(tl.load(best_ptr + block)).to(tl.int64) >= lowest:
            ids = block * BLOCK + tl.arange(0, BLOCK)
            value = load_scaled(logits_ptr, ids, vocab, temperature)
            taken = key_of(value).to(tl.int64)[None, :] >= pivots[:, None]
            taken = taken & (ids < vocab)[None, :]
            count += tl.sum(taken.to(tl.int32), 1)
            weights = tl.where(taken, tl.exp(value - best)[None, :], 0.0)
            mass += tl.sum(weights, 1).to(tl.float64)
    return count, mass


@triton.jit
def find_key(
    low,
    wanted_count,
    wanted_mass,
    logits_ptr,
    best_ptr,
    best,
    vocab,
    temperature,
    blocks,
    BLOCK: tl.constexpr,
    PIVOTS: tl.constexpr,
):
    """The largest key from `low` on at or above which lie wanted_count tokens and wanted_mass."""
    high = key_of(best).to(tl.int64) + 1
    while high - low > 1:
        step = tl.arange(0, PIVOTS).to(tl.int64) + 1
        pivots = low + (high - low) * step // (PIVOTS + 1)
        count, mass = at_or_above(
            pivots, logits_ptr, best_ptr, best, vocab, temperature, blocks, BLOCK
        )
        enough = (count >= wanted_count) & (mass >= wanted_mass)
        low = tl.maximum(low, tl.max(tl.where(enough, pivots, low), 0))
        high = tl.minimum(high, tl.min(tl.where(enough, high, pivots), 0))
    return low


@triton.jit
def weight_of(key, best):
    """exp(logit - best) of the logit with this key."""
    narrow = key.to(tl.int32)
    bits = narrow ^ ((narrow >> 31) & 0x7FFFFFFF)
    return tl.exp(bits.to(tl.float32, bitcast=True) - best).to(tl.float64)


@triton.jit
def filtered(
    top_k,
    top_p,
    mass,
    logits_ptr,
    best_ptr,
    best,
    vocab,
    temperature,
    blocks,
    BLOCK: tl.constexpr,
    PIVOTS: tl.constexpr,
):
    """What top-k and top-p keep: all above a key, and so many tokens with that key, lowest ids.

    mass: of the whole row. Returns the key as int64 and the number of ties.
    """
    key = tl.cast(LEAST_KEY, tl.int64)
    ties = tl.cast(NONE, tl.int32)
    one = tl.zeros([PIVOTS], tl.int64)
    if (top_k > 0) & (top_k < vocab):
        key = find_key(
            key, top_k, -1.0, logits_ptr, best_ptr, best, vocab, temperature, blocks, BLOCK, PIVOTS
        )
        count, above = at_or_above(
            one + (key + 1), logits_ptr, best_ptr, best, vocab, temperature, blocks, BLOCK
        )
        ties = top_k - tl.max(count, 0)
        mass = tl.max(above, 0) + ties.to(tl.float64) * weight_of(key, best)
    if top_p < 1.0:
        wanted = top_p * mass
        found = find_key(
            key, 0, wanted, logits_ptr, best_ptr, best, vocab, temperature, blocks, BLOCK, PIVOTS
        )
        count, above = at_or_above(
            one + (found + 1), logits_ptr, best_ptr, best, vocab, temperature, blocks, BLOCK
        )
        weight = tl.maximum(weight_of(found, best), 1e-300)
        missing = tl.minimum(tl.ceil((wanted - tl.max(above, 0)) / weight), 2147483647.0)
        kept = tl.maximum(missing.to(tl.int32), 1)
        ties = tl.where(found == key, tl.minimum(ties, kept), kept)
        key = found
    return key, ties


@triton.jit
def kept_weights(
    block, before, key, ties, min_p, logits_ptr, best, vocab, temperature, BLOCK: tl.constexpr
):
    """Weights of a block with 0 where a filter drops the token, and its tokens that have the key.

    before: tokens of earlier blocks that have the key. Returns [BLOCK] float32 and a number.
    """
    ids = block * BLOCK + tl.arange(0, BLOCK)
    value = load_scaled(logits_ptr, ids, vocab, temperature)
    keys = key_of(value).to(tl.int64)
    tied = ((keys == key) & (ids < vocab)).to(tl.int32)
    rank = before + tl.cumsum(tied, 0) - tied
    weights = tl.exp(value - best)
    kept = (keys > key) | ((tied != 0) & (rank < ties))
    kept = kept & (weights.to(tl.float64) >= min_p) & (ids < vocab)
    return tl.where(kept, weights, 0.0), tl.sum(tied, 0)


@triton.jit
def uniform_of(seed, position):
    """The number of sampling.random.uniforms, to the bit: in [0, 1), float64."""
    low = (position & 0xFFFFFFFF).to(tl.uint32)
    high = (position >> 32).to(tl.uint32)
    zero = tl.zeros_like(low)
    first, second, _, _ = tl.philox(seed.to(tl.uint64, bitcast=True), low, high, zero, zero)
    bits = ((first.to(tl.uint64) << 32) | second.to(tl.uint64)) >> 11
    return bits.to(tl.int64).to(tl.float64) * (1.0 / 9007199254740992.0)


@triton.jit
def decide_kernel(
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    seeds_ptr,
    positions_ptr,
    greedy_ptr,
    best_ptr,
    mass_ptr,
    ids_ptr,
    logits_stride,
    vocab,
    blocks,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    PIVOTS: tl.constexpr,
):
    """Program r: the id of row r, -1 where its best logit is not finite."""
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * logits_stride
    best_ptr += row * blocks
    mass_ptr += row * blocks
    index = tl.arange(0, BLOCKS)
    bests = tl.load(best_ptr + index, mask=index < blocks, other=float("-inf"))
    best = tl.max(bests, 0)
    inside = tl.arange(0, BLOCK)
    if tl.abs(best) == float("inf"):
        tl.store(ids_ptr + row, -1)
    elif tl.load(greedy_ptr + row) != 0:
        block = tl.min(tl.where(bests == best, index, BLOCKS), 0)
        value = load_scaled(logits_ptr, block * BLOCK + inside, vocab, 1.0)
        tl.store(ids_ptr + row, block * BLOCK + tl.min(tl.where(value == best, inside, BLOCK), 0))
    else:
        temperature = tl.load(temperature_ptr + row)
        top_k, min_p = tl.load(top_k_ptr + row), tl.load(min_p_ptr + row)
        sums = tl.load(mass_ptr + index, mask=index < blocks, other=0.0).to(tl.float64)
        sums = tl.where(sums > 0.0, sums * tl.exp(bests - best).to(tl.float64), 0.0)
        key, ties = filtered(
            top_k, tl.load(top_p_ptr + row), tl.sum(sums, 0),
            logits_ptr, best_ptr, best, vocab, temperature, blocks, BLOCK, PIVOTS,
        )  # fmt: skip
        before = tl.zeros([BLOCKS], tl.int32)
        if (key > LEAST_KEY) | (min_p > 0.0):
            seen = 0
            for block in range(0, blocks):
                is_block = index == block
                mass, tied = tl.cast(0.0, tl.float32), 0
                if key_of(tl.load(best_ptr + block)).to(tl.int64) >= key:
                    weights, tied = kept_weights(
                        block, seen, key, ties, min_p, logits_ptr, best, vocab, temperature, BLOCK
                    )
                    mass = tl.sum(weights, 0)
                sums = tl.where(is_block, mass.to(tl.float64), sums)
                before = tl.where(is_block, seen, before)
                seen += tied
        total = tl.cumsum(sums, 0)
        uniform = uniform_of(tl.load(seeds_ptr + row), tl.load(positions_ptr + row))
        target = uniform * tl.sum(sums, 0)
        last = tl.max(tl.where(sums > 0.0, index, 0), 0)
        block = tl.minimum(tl.min(tl.where(total > target, index, BLOCKS), 0), last)
        is_block = index == block
        already = tl.sum(tl.where(is_block, total - sums, 0.0), 0)
        seen = tl.sum(tl.where(is_block, before, 0), 0)
        weights, tied = kept_weights(
            block, seen, key, ties, min_p, logits_ptr, best, vocab, temperature, BLOCK
        )
        passed = already + tl.cumsum(weights.to(tl.float64), 0) > target
        final = tl.max(tl.where(weights > 0.0, inside, 0), 0)
        place = tl.minimum(tl.min(tl.where(passed, inside, BLOCK), 0), final)
        tl.store(ids_ptr + row, block * BLOCK + place)


def sample_launches(
    logits: torch.Tensor,
    draws: Draws,
    vocab: int,
    best: torch.Tensor,
    mass: torch.Tensor,
    ids: torch.Tensor,
) -> list[Launch]:
    """As sample, without running. best, mass: [rows, ceil(vocab / BLOCK)] float32, written."""
    if logits.dtype != torch.float32 or logits.stride(1) != 1 or logits.shape[1] < vocab:
        raise ValueError(f"{vocab} ids of {logits.dtype} logits {tuple(logits.shape)}")
    rows, blocks = best.shape
    shared: dict[str, Argument] = {
        "logits_ptr": logits,
        "temperature_ptr": draws.temperature,
        "greedy_ptr": draws.is_greedy,
        "best_ptr": best,
        "mass_ptr": mass,
        "logits_stride": logits.stride(0),
        "vocab": vocab,
    }
    scan = Launch(
        kernel=scan_kernel, grid=(rows, blocks), arguments=shared, constants={"BLOCK": BLOCK}
    )
    decide = Launch(
        kernel=decide_kernel,
        grid=(rows,),
        arguments={
            **shared,
            "top_k_ptr": draws.top_k,
            "top_p_ptr": draws.top_p,
            "min_p_ptr": draws.min_p,
            "seeds_ptr": draws.seeds,
            "positions_ptr": draws.positions,
            "ids_ptr": ids,
            "blocks": blocks,
        },
        constants={"BLOCK": BLOCK, "BLOCKS": power_of_2(blocks), "PIVOTS": PIVOTS},
        warps=8,
    )
    return [scan, decide]


def sample(logits: torch.Tensor, draws: Draws, valid_ids: int | None = None) -> torch.Tensor:
    """One token for each row, on the device: [rows] int32, -1 where the best logit is not finite.

    logits: [rows, vocab] float32, penalties and masks done, not changed. valid_ids: only ids below
    it are drawn; None: all.
    """
    rows, vocab = len(logits), logits.shape[1] if valid_ids is None else valid_ids
    size = (rows, -(-vocab // BLOCK))
    best = torch.empty(size, dtype=torch.float32, device=logits.device)
    ids = torch.empty(rows, dtype=torch.int32, device=logits.device)
    for launch in sample_launches(logits, draws, vocab, best, torch.empty_like(best), ids):
        launch.run()
    return ids
