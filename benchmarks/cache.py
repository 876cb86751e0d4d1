"""Time the radix tree and the order of the waiting queue, beside the Rust tree core of SGLang.

    python -m benchmarks.cache --sglang WHEEL_OR_FOLDER

Scenarios: 10,000 requests behind one prompt of 2,048 tokens; 128 chats that grow to 8,192; a full
pool of a million tokens; eviction with 1,000 to 100,000 leaves; the order of 128 to 10,000 waiting
requests (which only ours has over the whole queue). Times are microseconds, medians over the calls
of a round and then over the rounds; the sides take turns. The first line says whether our tree is
the compiled one; if so, the same sources run as Python are a side of their own.
"""

from __future__ import annotations

import argparse
import gc
import json
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from benchmarks.sglang_tree import AdapterTree, BareTree, PeerAbsent, load
from benchmarks.trees import PAGE, Ours, Tree, as_python
from radixserve.cache import is_compiled
from radixserve.cache.prefix import PrefixCache
from radixserve.plan import Int32
from radixserve.scheduler.finish import FinishCheck
from radixserve.scheduler.pages import RequestPages
from radixserve.scheduler.policy import order
from radixserve.scheduler.request import Request
from radixserve.wire.messages import Generate
from radixserve.wire.params import SamplingParams

MAX_DRIFT = 0.15
VOCAB = 49_152
LEAF = 64

Make = Callable[[int], Tree]
Scenario = Callable[[Make], dict[str, float]]


class Ids:
    """Random token ids, the same for each side and round."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)

    def __call__(self, n: int) -> Int32:
        return self._random.integers(VOCAB, size=n, dtype=np.int32)


def shared_prompt(make: Make, requests: int) -> dict[str, float]:
    """Requests of 32 tokens behind one prompt of 2,048."""
    ids = Ids()
    prompt = ids(2048)
    tree = make(2048 + requests * 32)
    keys = (tree.key(np.concatenate((prompt, ids(32)))) for _ in range(requests))
    return _served(tree, keys)


def chats(make: Make, count: int, length: int) -> dict[str, float]:
    """Chats that grow by 256 tokens a turn, all at the same pace."""
    ids = Ids()
    tree = make(count * length)

    def keys() -> Iterator[object]:
        histories = [ids(0) for _ in range(count)]
        for _ in range(length // 256):
            for i, history in enumerate(histories):
                histories[i] = np.concatenate((history, ids(256)))
                yield tree.key(histories[i])

    return _served(tree, keys())


def _served(tree: Tree, keys: Iterator[object]) -> dict[str, float]:
    """match: what is there of a prompt is found before its request is served; only hits count."""
    publish, match, whole = [], [], []
    for key in keys:
        start = time.perf_counter_ns()
        found = tree.match(key)
        spent = time.perf_counter_ns() - start
        if found:
            match.append(spent)
        others, insert = tree.request(key)
        publish.append(insert)
        whole.append(others + insert)
    return {"match": _middle(match), "insert": _middle(publish), "request": _middle(whole)}


def steady_eviction(make: Make, tokens: int, requests: int) -> dict[str, float]:
    """Requests of 512 tokens in a full pool: 256 of one of 64 preambles, 256 of their own."""
    ids = Ids()
    preambles = [ids(256) for _ in range(64)]
    tree = make(tokens)
    times = []
    for i in range(tokens // 256 + requests):
        key = tree.key(np.concatenate((preambles[i % 64], ids(256))))
        times.append(sum(tree.request(key)))
    return {"request": _middle(times[-requests:])}


def eviction(make: Make, leaves: int, times: int) -> dict[str, float]:
    """Making room for 64 tokens where so many leaves of 64 tokens fill the pool."""
    ids = Ids()
    tree = make(leaves * LEAF)
    for _ in range(leaves):
        tree.request(tree.key(ids(LEAF)))
    spent = []
    for _ in range(times):
        spent.append(tree.evict(LEAF // PAGE))
        tree.request(tree.key(ids(LEAF)))
    return {"evict": _middle(spent)}


def ordering(waiting: int) -> dict[str, float]:
    """Microseconds to order requests of 64 groups with 2,048 cached tokens each, by lpm.

    The scheduler looks at each of them when it arrives; `first` is the order without that.
    """
    ids = Ids()
    cache = PrefixCache(64 * 2048 // PAGE + 64, PAGE)
    prefixes = [ids(2048) for _ in range(64)]
    for prefix in prefixes:
        lease = cache.acquire("", prefix.tobytes())
        assert lease is not None
        cache.commit(lease, prefix.tobytes(), 2048, 2048)
        cache.release(lease)
    params = SamplingParams()
    requests = []
    for i in range(waiting):
        prompt = np.concatenate((prefixes[i % 64], ids(128))).tobytes()
        message = Generate(rid=str(i), prompt=prompt, params=params)
        requests.append(Request(message, i, 128, FinishCheck(params, (), ())))

    pages = RequestPages(cache, reserve=0.0)
    spent = {}
    for name in ("first", "lpm"):
        start = time.perf_counter_ns()
        ordered = order(requests, "lpm", 50, pages.matched)
        spent[name] = (time.perf_counter_ns() - start) / 1000
        assert len(ordered) == waiting
    return spent


def _middle(nanoseconds: Sequence[int]) -> float:
    return statistics.median(nanoseconds) / 1000


def _scenarios(is_quick: bool) -> dict[str, Scenario]:
    scale = 20 if is_quick else 1
    leaves = (1_000, 5_000) if is_quick else (1_000, 10_000, 100_000)
    scenarios: dict[str, Scenario] = {
        "shared_2k": lambda make: shared_prompt(make, 10_000 // scale),
        "chats_8k": lambda make: chats(make, 128 // scale, 8192),
        "steady_1m": lambda make: steady_eviction(make, 2**20 // scale, 5_000 // scale),
    }
    for n in leaves:
        scenarios[f"leaves_{n}"] = lambda make, n=n: eviction(make, n, 1_000 // scale)  # type: ignore[misc]
    return scenarios


def _rounds(scenario: Scenario, sides: dict[str, Make], rounds: int) -> dict[str, list[float]]:
    """The values of each round, by "side metric"."""
    values: dict[str, list[float]] = {}
    for _ in range(rounds):
        for side, make in sides.items():
            gc.collect()
            for metric, value in scenario(make).items():
                values.setdefault(f"{side}.{metric}", []).append(value)
    return values


def _report(name: str, values: dict[str, list[float]], out: dict[str, float | str]) -> None:
    """Print the lines of one scenario and keep its numbers in `out`."""
    for metric in [key.removeprefix("ours.") for key in values if key.startswith("ours.")]:
        ours = values[f"ours.{metric}"]
        line = f"{name:<14}{metric:<9}{statistics.median(ours):>10.2f}"
        out[f"{name}.{metric}.ours_us"] = round(statistics.median(ours), 3)
        if plain := values.get(f"python.{metric}"):
            line += f"{statistics.median(plain):>10.2f}"
            out[f"{name}.{metric}.python_us"] = round(statistics.median(plain), 3)
        if theirs := values.get(f"sglang.{metric}"):
            ratio = statistics.median(a / b for a, b in zip(ours, theirs))
            drifts = any(max(v) - min(v) > MAX_DRIFT * statistics.median(v) for v in (ours, theirs))
            verdict = "inconclusive" if drifts or len(ours) < 2 else "ok"
            line += f"{statistics.median(theirs):>10.2f}{ratio:>8.2f}x"
            line += "" if verdict == "ok" else f"  {verdict}"
            out[f"{name}.{metric}.sglang_us"] = round(statistics.median(theirs), 3)
            out[f"{name}.{metric}.ratio"] = round(ratio, 4)
            out[f"{name}.{metric}.verdict"] = verdict
        print(line, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--sglang", type=pathlib.Path, metavar="PATH", help="its wheel or folder")
    parser.add_argument(
        "--bare", action="store_true", help="call SGLang's match without its Python adapter"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="5, or 2 with --quick")
    parser.add_argument("--quick", action="store_true", help="small trees, a few seconds")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write name: value")
    options = parser.parse_args(arguments)
    rounds = options.rounds or (2 if options.quick else 5)
    sides: dict[str, Make] = {"ours": Ours}
    if is_compiled():
        plain = as_python()
        sides["python"] = lambda tokens: Ours(tokens, plain)
    try:
        if options.sglang is None:
            raise PeerAbsent("no --sglang")
        package = load(options.sglang)
        tree = BareTree if options.bare else AdapterTree
        sides["sglang"] = lambda tokens: tree(package, tokens)
    except PeerAbsent as reason:
        print(f"peer absent: {reason}")
    out: dict[str, float | str] = {"rounds": rounds}
    out["ours"] = "compiled" if is_compiled() else "python"
    columns = "".join(f"{side:>10}" for side in sides)
    print(f"our tree: {out['ours']}\n{'microseconds':<23}{columns}{'ratio':>9}")
    for name, scenario in _scenarios(options.quick).items():
        _report(name, _rounds(scenario, sides, rounds), out)
    for waiting in (128, 1_000) if options.quick else (128, 1_000, 10_000):
        measured = [ordering(waiting) for _ in range(rounds)]
        spent = {f"ours.{name}": [one[name] for one in measured] for name in measured[0]}
        _report(f"order_{waiting}", spent, out)
    if options.json:
        options.json.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
