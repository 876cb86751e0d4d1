"""What a step must cost at least: bytes and FLOPs of every kernel, and the time these take.

    python -m benchmarks.roofline

Arithmetic, nothing is run. Each kernel of kernels/triton is accounted as its docstring says, each
matrix product by its operands; a kernel takes the longer of its bytes at the memory's bandwidth and
its FLOPs at the matrix rate, and a step is the sum of its kernels. What that leaves out: launches,
the ends of waves, caches (KV that several tiles of a prefill read is counted once, as if the L2
cache held it), overlap of kernels. Measured times are held against this; they cannot be below it.

The model is Llama-3-8B in bfloat16 and the GPU an H200 (4.8 TB/s, 989 TFLOP/s dense) unless told
otherwise. Rows of a decode step have 2,048 tokens each, or 4,096 shared ones and 256 of their own.
"""

from __future__ import annotations

import argparse
import json
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass

from radixserve.ints import ceil_div

KV_TOKENS = 2048
SHARED, OWN = 4096, 256
TILE_ROWS = 128  # of attend_extend and of the groups of attend_shared
LEAST_SPLIT, MOST_SPLITS, PROCESSORS = 256, 64, 132  # of attend_decode, on an H200


@dataclass(frozen=True, slots=True)
class Model:
    """Sizes; element: bytes of a weight, an activation and a number in the KV pool."""

    layers: int = 32
    hidden: int = 4096
    inner: int = 14336
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    vocab: int = 128256
    element: int = 2

    @property
    def weight_bytes(self) -> int:
        """Of all matrices that a step reads (not the embedding table)."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        layer = attention + 3 * self.hidden * self.inner
        return self.element * (self.layers * layer + self.hidden * self.vocab)


@dataclass(frozen=True, slots=True)
class Machine:
    """bandwidth: bytes a second. rate: FLOPs a second of matrix products."""

    bandwidth: float = 4.8e12
    rate: float = 989e12


@dataclass(frozen=True, slots=True)
class Cost:
    """`times` launches, each of so many bytes and FLOPs."""

    name: str
    times: int
    moved: float
    flops: float

    def seconds(self, machine: Machine) -> float:
        return self.times * max(self.moved / machine.bandwidth, self.flops / machine.rate)

    def bound(self, machine: Machine) -> str:
        is_memory = self.moved / machine.bandwidth >= self.flops / machine.rate
        return "memory" if is_memory else "compute"


def product(name: str, times: int, tokens: int, inputs: int, outputs: int, element: int) -> Cost:
    """[tokens, inputs] times a weight of [outputs, inputs]."""
    moved = element * (inputs * outputs + tokens * (inputs + outputs))
    return Cost(name, times, moved, 2.0 * tokens * inputs * outputs)


def rms_norm(model: Model, tokens: int) -> Cost:
    values = tokens * model.hidden
    moved = model.element * (4 * values + model.hidden)
    return Cost("rms_norm", 2 * model.layers + 1, moved, 5.0 * values)


def rotary_store(model: Model, tokens: int) -> Cost:
    turned, stored = model.heads, model.kv_heads
    each = 2 * turned * model.element + 4 * stored * model.element + 4
    flops = 3.0 * tokens * (turned + stored) * model.head_dim
    return Cost("rotary_store", model.layers, tokens * model.head_dim * each, flops)


def silu_mul(model: Model, tokens: int) -> Cost:
    values = tokens * model.inner
    return Cost("silu_mul", model.layers, 3 * model.element * values, 6.0 * values)


def sample(model: Model, rows: int) -> Cost:
    """The scan and two looks more; the other looks of a filter meet few blocks."""
    return Cost("sample", 1, 3 * 4 * rows * model.vocab, 18.0 * rows * model.vocab)


def kv_bytes(model: Model, tokens: float) -> float:
    """Of one layer's K and V."""
    return tokens * model.kv_heads * model.head_dim * 2 * model.element


def query_bytes(model: Model, tokens: int) -> int:
    """Queries in, outputs out."""
    return 2 * tokens * model.heads * model.head_dim * model.element


def part_bytes(model: Model, parts: int) -> int:
    """Partial results written and read."""
    return 8 * parts * model.heads * (model.head_dim + 1)


def attend_decode(model: Model, rows: int, kv_tokens: int) -> Cost:
    wanted = ceil_div(4 * PROCESSORS, rows * model.kv_heads)
    splits = max(1, min(wanted, kv_tokens // LEAST_SPLIT, MOST_SPLITS))
    moved = kv_bytes(model, rows * kv_tokens) + query_bytes(model, rows)
    moved += part_bytes(model, rows * splits) if splits > 1 else 0
    flops = 4.0 * rows * kv_tokens * model.heads * model.head_dim
    return Cost("attend_decode", model.layers, moved, flops)


def attend_shared(model: Model, rows: int, shared: int, own: int) -> Cost:
    """Rows that share their first tokens, read once for each tile of queries."""
    tiles = ceil_div(rows * model.heads // model.kv_heads, TILE_ROWS)
    moved = kv_bytes(model, tiles * shared + rows * own) + query_bytes(model, rows)
    moved += part_bytes(model, 2 * rows)
    flops = 4.0 * rows * (shared + own) * model.heads * model.head_dim
    return Cost("attend_shared", model.layers, moved, flops)


def attend_extend(model: Model, tokens: int, prefix: int = 0) -> Cost:
    pairs = tokens * prefix + tokens * (tokens + 1) / 2
    moved = kv_bytes(model, prefix + tokens) + query_bytes(model, tokens)
    flops = 4.0 * pairs * model.heads * model.head_dim
    return Cost("attend_extend", model.layers, moved, flops)


def step(model: Model, tokens: int, rows: int, attention: Cost) -> list[Cost]:
    """The kernels of a step of `tokens` tokens in all; each of `rows` rows samples its last."""
    layers, hidden, element = model.layers, model.hidden, model.element
    q_size, kv_size = model.heads * model.head_dim, model.kv_heads * model.head_dim
    return [
        Cost("embedding", 1, 2 * tokens * hidden * element, 0.0),
        rms_norm(model, tokens),
        product("qkv", layers, tokens, hidden, q_size + 2 * kv_size, element),
        rotary_store(model, tokens),
        attention,
        product("output", layers, tokens, q_size, hidden, element),
        product("gate_up", layers, tokens, hidden, 2 * model.inner, element),
        silu_mul(model, tokens),
        product("down", layers, tokens, model.inner, hidden, element),
        product("logits", 1, rows, hidden, model.vocab, element),
        sample(model, rows),
    ]


def total(costs: Sequence[Cost], machine: Machine) -> float:
    """Seconds of a step."""
    return sum(cost.seconds(machine) for cost in costs)


def show(title: str, costs: Sequence[Cost], machine: Machine) -> None:
    whole = total(costs, machine)
    print(f"\n{title}: {whole * 1e3:.3f} ms")
    print(f"{'':>14}{'times':>7}{'MB':>11}{'GFLOP':>11}{'FLOP/B':>9}{'bound':>9}{'us':>10}{'':>6}")
    for cost in costs:
        seconds = cost.seconds(machine)
        print(
            f"{cost.name:>14}{cost.times:>7}{cost.times * cost.moved / 1e6:>11.1f}"
            f"{cost.times * cost.flops / 1e9:>11.1f}{cost.flops / cost.moved:>9.1f}"
            f"{cost.bound(machine):>9}{seconds * 1e6:>10.1f}{seconds / whole:>6.0%}"
        )


def workloads(model: Model, is_quick: bool) -> dict[str, list[Cost]]:
    """What is accounted, by name."""
    found = {}
    for rows in (64,) if is_quick else (1, 16, 64, 256):
        attention = attend_decode(model, rows, KV_TOKENS)
        found[f"decode_{rows}"] = step(model, rows, rows, attention)
    for tokens in (8192,) if is_quick else (2048, 8192):
        found[f"prefill_{tokens}"] = step(model, tokens, 1, attend_extend(model, tokens))
    plain = attend_decode(model, 256, SHARED + OWN)
    found["prefix_each"] = step(model, 256, 256, plain)
    found["prefix_once"] = step(model, 256, 256, attend_shared(model, 256, SHARED, OWN))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--bandwidth", type=float, default=4.8, metavar="TB/S", help="of memory")
    parser.add_argument("--rate", type=float, default=989, metavar="TFLOP/S", help="of products")
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write name: value")
    options = parser.parse_args(arguments)
    model = Model()
    machine = Machine(options.bandwidth * 1e12, options.rate * 1e12)
    floor = model.weight_bytes / machine.bandwidth
    print(f"weights: {model.weight_bytes / 1e9:.2f} GB, read once in {floor * 1e3:.3f} ms")
    out = {"weights_ms": round(floor * 1e3, 4)}
    for name, costs in workloads(model, options.quick).items():
        show(name, costs, machine)
        out[f"{name}.ms"] = round(total(costs, machine) * 1e3, 4)
        out |= {f"{name}.{c.name}_us": round(c.seconds(machine) * 1e6, 2) for c in costs}
    attention = out["prefix_each.attend_decode_us"] / out["prefix_once.attend_shared_us"]
    print(
        f"\nattention of 256 rows on a shared prefix of {SHARED}: {attention:.1f}x by reading once"
    )
    out["shared_speedup"] = round(attention, 2)
    if options.json:
        options.json.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
