"""benchmarks/peers.py as a user starts it, against servers that say "x"."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

from tests.bench_server import Peer, serving
from tests.tiny_tokenizer import make_tokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = make_tokenizer(tmp_path_factory.mktemp("model"))
    (folder / "config.json").write_text("{}")
    return folder


def peers(model: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.peers", "--model", str(model), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_two_sides_a_table_and_a_file(model: pathlib.Path, tmp_path: pathlib.Path):
    file = tmp_path / "out.json"
    with serving(Peer()) as a, serving(Peer(delay=0.005)) as b:
        done = peers(
            model,
            f"--a={a.url}=fast",
            f"--b={b.url}=slow",
            "--workloads=W0,W2",
            "--quick",
            "--rounds=1",
            f"--json={file}",
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("| slow") == 2
    values = json.loads(file.read_text())
    assert values["W0.speed.fast_to_slow"] > 1
    assert values["W2.prompt_tokens"] == 16 * 816
    assert values["seed"]
    assert len(a.bodies) == len(b.bodies) == 2 * (1 + 16)


def test_seeds_differ_unless_given(model: pathlib.Path):
    arguments = ("--workloads=W0", "--quick", "--rounds=1")
    with serving(Peer()) as peer:
        for seed in ("--seed=x", "--seed=x", "--seed=y"):
            assert peers(model, f"--a={peer.url}", seed, *arguments).returncode == 0
        for _ in range(2):
            assert peers(model, f"--a={peer.url}", *arguments).returncode == 0
    counted = [tuple(body["prompt"]) for body in peer.bodies[1::2]]
    assert counted[0] == counted[1]
    assert len(set(counted)) == 4


def test_a_side_that_gives_another_length_fails_loudly(model: pathlib.Path):
    with serving(Peer()) as a, serving(Peer(tokens_off=-3)) as b:
        done = peers(model, f"--a={a.url}", f"--b={b.url}=short", "--workloads=W0", "--quick")
    assert done.returncode == 1
    assert "short: call 0 gave 29 tokens, 32 were asked for" in done.stderr


def test_what_was_measured_before_a_side_failed_is_told(
    model: pathlib.Path, tmp_path: pathlib.Path
):
    file = tmp_path / "out.json"
    # W2's prompts have 20 tokens and more in common, the only one of W0 has nothing.
    with serving(Peer(cached=20)) as peer:
        done = peers(
            model,
            f"--a={peer.url}",
            "--workloads=W2,W0",
            "--quick",
            "--rounds=1",
            f"--json={file}",
        )
    assert done.returncode == 1
    assert "knew them already" in done.stderr
    assert "| W2 " in done.stdout
    values = json.loads(file.read_text())
    assert values["W2.a.makespan_s"] > 0
    assert not any(name.startswith("W0") for name in values)


def test_w8_says_how_to_start_the_servers(model: pathlib.Path):
    with serving(Peer()) as peer:
        done = peers(model, f"--a={peer.url}", "--workloads=W8", "--quick", "--rounds=1")
    assert done.returncode == 0, done.stderr
    assert "--kv-tokens 2048" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--a=127.0.0.1:1", "--workloads=W9"], "no workload 'W9'"),
        (["--a=https://h"], "no http URL"),
        (["--a=127.0.0.1:1=x", "--b=127.0.0.1:2=x"], "same name"),
        (["--a=127.0.0.1:1", "--pause-idle"], "needs --pid-a"),
        (["--a=127.0.0.1:1", "--pid-b=1"], "--pid-b without --b"),
        (["--a=127.0.0.1:1", "--rounds=0"], "at least 1"),
        (["--b=127.0.0.1:1"], "required: --a"),
    ],
)
def test_usage_errors(model: pathlib.Path, arguments: list[str], message: str):
    done = peers(model, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
