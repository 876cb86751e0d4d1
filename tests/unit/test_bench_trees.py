"""The scenarios of the tree, the queue and the host step, small; and a peer that is not there."""

from __future__ import annotations

import json
import pathlib
import zipfile

import numpy as np
import pytest

from benchmarks import cache, host_step
from benchmarks.sglang_tree import PeerAbsent, load
from benchmarks.trees import PAGE, Ours


def ids(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1000, size=n, dtype=np.int32)


def test_our_tree_finds_what_a_request_has_published():
    tree = Ours(1024)
    key = tree.key(ids(128))
    assert tree.match(key) == 0
    assert min(tree.request(key)) > 0
    assert tree.match(key) // PAGE == 7
    assert tree.match(tree.key(np.concatenate((ids(64), ids(64, seed=1))))) == 64


def test_our_tree_evicts_what_was_asked_for_and_can_do_it_again():
    tree = Ours(20 * 64)
    keys = [tree.key(ids(64, seed)) for seed in range(30)]
    for key in keys[:20]:
        tree.request(key)
    for key in keys[20:]:
        assert tree.evict(64 // PAGE) > 0
        tree.request(key)
    assert tree.match(keys[-1]) // PAGE == 3
    assert tree.match(keys[0]) == 0


def test_a_pool_with_room_is_no_place_to_time_eviction():
    with pytest.raises(AssertionError, match="not full"):
        Ours(20 * 64).evict(4)


@pytest.mark.parametrize(
    ("scenario", "metrics"),
    [
        (lambda: cache.shared_prompt(Ours, 20), {"match", "insert", "request"}),
        (lambda: cache.chats(Ours, 2, 1024), {"match", "insert", "request"}),
        (lambda: cache.steady_eviction(Ours, 64 * 512, 20), {"request"}),
        (lambda: cache.eviction(Ours, 50, 10), {"evict"}),
    ],
)
def test_a_scenario_runs(scenario, metrics: set[str]):
    times = scenario()
    assert set(times) == metrics
    assert all(time > 0 for time in times.values())


def test_ordering_takes_time():
    assert min(cache.ordering(100).values()) > 0


def test_the_report_compares_round_by_round(capsys: pytest.CaptureFixture[str]):
    out: dict[str, float | str] = {}
    values = {"ours.match": [1.0, 2.0, 1.0], "sglang.match": [2.0, 2.0, 4.0]}
    cache._report("x", values, out)
    cache._report("y", {"ours.evict": [3.0, 3.1], "sglang.evict": [6.0, 6.2]}, out)
    assert out["x.match.ratio"] == 0.5
    assert out["x.match.verdict"] == "inconclusive"
    assert out["y.evict.verdict"] == "ok"
    assert "inconclusive" in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize("kind", ["missing", "empty folder", "no wheel", "other wheel"])
def test_a_peer_that_is_not_there_says_why(kind: str, tmp_path: pathlib.Path):
    path = tmp_path / "peer"
    if kind == "empty folder":
        path.mkdir()
    elif kind == "no wheel":
        path.write_bytes(b"no zip")
    elif kind == "other wheel":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("other/__init__.py", "")
    with pytest.raises(PeerAbsent, match=r"exist|no Rust|no wheel"):
        load(path)


def test_a_host_step_is_timed_by_stage():
    times = host_step.measure(rows=4, steps=5)
    assert set(times) == {"plan", "apply", "encode", "all"}
    assert all(time > 0 for time in times.values())
    assert times["all"] < sum(times.values())


@pytest.mark.slow
@pytest.mark.bench
@pytest.mark.parametrize("module", [cache, host_step])
def test_quick_runs_end_to_end(module, tmp_path: pathlib.Path):
    file = tmp_path / "out.json"
    module.main(["--quick", "--rounds=1", f"--json={file}"])
    values = json.loads(file.read_text())
    assert values["rounds"] == 1
    assert len(values) > 5
