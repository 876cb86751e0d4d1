"""How the process that compiles grammars starts, and when: grammar/bare.py, child.py, gate.py."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from radixserve.config.schema import GrammarConfig
from radixserve.errors import InternalError
from radixserve.grammar.compile import Compiler
from radixserve.grammar.gate import Gate
from radixserve.grammar.pool import Matcher
from radixserve.grammar.vocabulary import Vocabulary
from radixserve.wire.messages import Setup
from radixserve.wire.params import Constraint

BYTES = [*(bytes([code]) for code in range(256)), b""]


def matched(compiler: Compiler) -> object:
    compiler.submit("x", Constraint(kind="regex", value="a+"), ())
    deadline = time.monotonic() + 60
    while not (found := compiler.poll()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return found[0][1]


def test_it_starts_without_torch() -> None:
    code = "import sys; from radixserve.grammar import bare; bare.load(); import xgrammar\n"
    code += "print(sorted({'torch', 'transformers'} & sys.modules.keys()))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stdout == "[]\n", ran.stderr


@pytest.mark.parametrize("whole", [True, False])
def test_where_it_cannot_it_starts_with_torch(monkeypatch, tmp_path, whole) -> None:
    """And where it cannot start at all, the request ends."""
    python = tmp_path / "python"
    other = f'exec {sys.executable} "$@"' if whole else "exit 1"
    python.write_text(f'#!/bin/sh\ncase "$*" in *--bare*) exit 1;; esac\n{other}\n')
    python.chmod(0o755)
    monkeypatch.setattr("radixserve.grammar.child.sys.executable", str(python))
    compiler = Compiler(Vocabulary(BYTES, [256], 257))
    try:
        found = matched(compiler)
    finally:
        compiler.close()
    if whole:
        assert isinstance(found, Matcher)
    else:
        assert isinstance(found, InternalError)
        assert "does not start" in found.message


def gate_of(idle: float) -> Gate:
    setup = Setup(config=b"", token_bytes=list(BYTES), stop_ids=[256])
    return Gate(GrammarConfig(compiler_idle_s=idle), setup, len(BYTES), threads=1)


def is_made(gate: Gate) -> bool:
    return "grammar_compiles" in gate.counts()


def test_the_compiler_is_made_when_there_is_no_work() -> None:
    gate = gate_of(0.2)
    try:
        began = last = time.monotonic()
        longest = 0.0  # on a busy machine this loop may stand still, which is no work either
        while last < began + 0.6:
            gate.ready()
            time.sleep(0.001)
            now = time.monotonic()
            longest, last = max(longest, now - last), now
        assert gate._making is None or longest > 0.1
        deadline = time.monotonic() + 30
        while not is_made(gate):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        gate.close()


def test_or_with_the_first_constraint() -> None:
    gate = gate_of(0.0)
    try:
        time.sleep(0.05)
        assert gate._making is None
    finally:
        gate.close()


def test_a_gate_that_is_closed_makes_nothing() -> None:
    gate = gate_of(0.05)
    gate.close()
    time.sleep(0.15)
    assert gate._making is None
