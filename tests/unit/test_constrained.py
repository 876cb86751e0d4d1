"""Constrained requests through loop and scheduler, on a model whose tokens are letters."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest

from radixserve.config.schema import GrammarConfig
from radixserve.grammar.check import check
from radixserve.grammar.gate import Gate
from radixserve.native.stops import stop_patterns
from radixserve.wire.messages import FinishReason, Setup
from radixserve.wire.params import Constraint
from tests.engine_driver import EngineDriver
from tests.fake_executor import ROOT, chain, draw_legal, expected

VOCAB = 7  # a .. f, and g, the end
END = 6
LETTERS = [chr(97 + i).encode() for i in range(VOCAB)]
PATTERN = "ab(c|d)eee(a|b){0,6}fedcba(c|d)"


@pytest.fixture(scope="module")
def gate() -> Iterator[Gate]:
    setup = Setup(config=b"", token_bytes=LETTERS, stop_ids=[END])
    found = Gate(GrammarConfig(compile_seconds=60), setup, VOCAB, threads=1)
    yield found
    found.close()


def driver(gate: Gate, **fields) -> EngineDriver:
    return EngineDriver(vocab=VOCAB, stop_ids=(END,), gate=gate, **fields)


def regex(pattern: str) -> Constraint:
    return check(Constraint(kind="regex", value=pattern))


def text(ids: list[int]) -> str:
    return "".join(chr(97 + token) for token in ids)


def simulated(prompt: list[int], room: int) -> str:
    """What one-by-one sampling gives among the letters that keep a match of PATTERN possible, and
    the shortest way out when room runs out."""
    texts = language()
    state = ROOT
    for token in prompt:
        state = chain(state, token)
    out = ""
    while True:
        ways = sorted({t[len(out)] for t in texts if t.startswith(out) and len(t) > len(out)})
        ids = [ord(way) - 97 for way in ways] + ([END] if out in texts else [])
        if ids == [END] or not ids:
            return out
        token = draw_legal(state, ids)
        if token == END:
            return out
        longer = out + chr(97 + token)
        shortest = min((t for t in texts if t.startswith(longer)), key=len)
        if len(shortest) > room:
            return min((t for t in texts if t.startswith(out)), key=lambda t: (len(t), t))
        out = longer
        state = chain(state, token)


def language() -> list[str]:
    """Every text that PATTERN matches."""
    middles = ["".join(m) for n in range(7) for m in itertools.product("ab", repeat=n)]
    return [f"ab{x}eee{middle}fedcba{y}" for x in "cd" for middle in middles for y in "cd"]


PROMPTS = [[0, 1, 2, 3, 4, 5, 0, 1], [0, 1, 2, 3, 4, 5, 0, 2], [3, 3, 3], [5, 4, 3, 2, 1, 0]]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("logprobs", [None, 0])
def test_tokens_are_those_of_sampling_one_by_one(gate, overlap, logprobs):
    """Forced letters are the only ones the mask leaves, so appending them changes no output."""
    run = driver(gate, overlap=overlap)
    rids = [
        run.submit(prompt, 30, constraint=regex(PATTERN), output_logprobs=logprobs)
        for prompt in PROMPTS
    ]
    free = run.submit(PROMPTS[0], 12)
    run.run()
    for rid, prompt in zip(rids, PROMPTS):
        assert text(run.output(rid)) == simulated(prompt, 30)
        assert re.fullmatch(PATTERN, text(run.output(rid)))
        end = run.finished(rid)
        assert (end.reason, end.truncated) == (FinishReason.STOP, False)
        assert end.completion_tokens == len(run.output(rid))
        assert bool(end.forced_tokens) == (logprobs is None)
    out = run.output(free)
    assert out == expected(PROMPTS[0], 12, VOCAB)[: len(out)]
    run.no_leak()


def test_forced_tokens_take_no_steps(gate):
    run = driver(gate)
    rid = run.submit([1, 2, 3], 30, constraint=regex("abc(d|e)fedcbafedcba(a|b)c"))
    run.run()
    assert run.finished(rid).forced_tokens == 16
    assert len(run.executor.steps) == 2
    # ab and c come with the prompt; what is forced later is told to the penalties.
    assert [len(opened.output) for step in run.executor.steps for opened in step.opened] == [3]
    told = [a for step in run.executor.steps for each in step.appended for a in each.ids]
    assert text(told) == "fedcbafedcba"


def test_an_output_that_is_decided_needs_no_step(gate):
    run = driver(gate)
    rid = run.submit([1, 2, 3], 30, constraint=regex("abcdef"))
    empty = run.submit([1, 2, 3], 30, constraint=regex(""))
    run.run()
    assert text(run.output(rid)) == "abcdef"
    assert run.output(empty) == []
    assert {run.finished(r).reason for r in (rid, empty)} == {FinishReason.STOP}
    assert not run.executor.steps
    run.no_leak()


@pytest.mark.parametrize("room", range(13, 24))
def test_every_length_ends_well(gate, room):
    run = driver(gate)
    rids = [run.submit(p, room, constraint=regex(PATTERN)) for p in PROMPTS]
    scored = [run.submit(p, room, constraint=regex(PATTERN), output_logprobs=0) for p in PROMPTS]
    run.run()
    for rid, twin, prompt in zip(rids, scored, PROMPTS):
        out = text(run.output(rid))
        assert out == text(run.output(twin)) == simulated(prompt, room)
        assert re.fullmatch(PATTERN, out)
        assert len(out) <= room
        full = simulated(prompt, 40)
        for end in (run.finished(rid), run.finished(twin)):
            if out == full:
                assert (end.reason, end.truncated) == (FinishReason.STOP, False)
            else:
                assert (end.reason, end.truncated) == (FinishReason.LENGTH, True)
    run.no_leak()


def test_too_little_room_is_refused_with_the_number(gate):
    run = driver(gate)
    rid = run.submit([1], 12, constraint=regex(PATTERN))
    run.run()
    end = run.finished(rid)
    assert end.reason is FinishReason.ERROR
    assert end.param == "max_new_tokens"
    assert "takes 13 tokens" in end.message
    run.no_leak()


def test_q05_retraction_and_failed_steps_change_nothing(gate):
    prompts = [[i % 6, 1, 2, 3, 4, 5, 0, i % 5] for i in range(6)]
    want = [simulated(prompt, 30) for prompt in prompts]
    for fields in ({"pages": 12}, {"pages": 64, "enabled": False}, {"pages": 12, "overlap": True}):
        run = driver(gate, reserve=0.0, step_retries=5, **fields)
        rids = [run.submit(prompt, 30, constraint=regex(PATTERN)) for prompt in prompts]
        for turn in range(400):
            if turn in (9, 15):
                run.executor.fail_next = "launch" if turn == 9 else "sample"
            run.turn()
        run.run()
        assert [text(run.output(rid)) for rid in rids] == want
        run.no_leak()


def test_a_stop_string_ends_where_the_text_is_whole_and_only_there(gate):
    run = driver(gate)
    inside = run.submit([1], 30, constraint=regex("abc(d|e)"), params={"stop": ("bc",)})
    whole = run.submit([1], 30, constraint=regex("a+b{5}(a|b)*c"), params={"stop": ("zz", "b")})
    early = run.submit([1], 30, constraint=regex("aaa(ba?)*"), params={"stop": ("b",)})
    run.run()
    assert re.fullmatch("abc(d|e)", text(run.output(inside)))
    assert re.fullmatch("a+b{5}(a|b)*c", text(run.output(whole)))
    end = run.finished(early)
    if "b" in text(run.output(early)):
        assert (end.matched, end.kept_bytes) == ("b", 3)
    assert end.reason is FinishReason.STOP


def test_a_stop_pattern_ends_where_the_text_is_whole_and_only_there(gate):
    run = driver(gate)
    inside = run.submit([1], 30, constraint=regex("abc(d|e)"), params=patterns("b"))
    later = run.submit([1], 30, constraint=regex("(a|b){3}(f{2})+"), params=patterns("[ab]{2}"))
    beside = run.submit(
        [1], 30, constraint=regex("abc(cd)*"), params=patterns("bc") | {"stop": ("b",)}
    )
    run.run()
    assert re.fullmatch("abc(d|e)", text(run.output(inside)))
    assert re.fullmatch("(a|b){3}ff", text(run.output(later)))
    assert (text(run.output(beside)), run.finished(beside).matched) == ("abc", "bc")
    assert run.finished(later).matched == "[ab]{2}"


def patterns(text: str) -> dict[str, object]:
    return {"stop_regex": stop_patterns(text, "stop_regex")}


def test_ignore_eos_and_min_tokens_yield_to_the_grammar(gate):
    run = driver(gate)
    rid = run.submit(
        [2], 30, constraint=regex("(a|b){3}"), params={"ignore_eos": True, "min_new_tokens": 9}
    )
    run.run()
    assert re.fullmatch("(a|b){3}", text(run.output(rid)))
    assert run.finished(rid).reason is FinishReason.STOP


def test_c07_abort_while_the_grammar_compiles(gate):
    run = driver(gate)
    rid = run.submit([1], 30, constraint=regex("(a|b){7}c"))
    run.turn()
    assert run.gate.held == 1
    run.abort(rid)
    run.abort(rid)
    other = run.submit([1], 30, constraint=regex("(a|b){7}c"))
    run.run()
    assert run.finished(rid).reason is FinishReason.ABORT
    assert run.output(rid) == []
    assert re.fullmatch("(a|b){7}c", text(run.output(other)))
    run.no_leak()


def test_what_cannot_be_queued_is_refused_before_it_is_compiled(gate):
    run = driver(gate, max_waiting=2)
    wrong = run.submit([], 9, constraint=regex("(a|b){8}d"))
    held = [run.submit([1], 9, constraint=regex("(a|b){8}c")) for _ in range(3)]
    run.turn()
    assert run.finished(held[2]).code == "queue_full"
    assert run.finished(wrong).param == "prompt"
    run.run()
    assert run.finished(held[0]).reason is FinishReason.STOP


def test_prompt_scores_come_before_an_empty_output(gate):
    run = driver(gate)
    rid = run.submit(
        [1, 2, 3, 4], 9, constraint=regex(""), prompt_logprobs=0, prompt_logprobs_start=1
    )
    run.run()
    assert sorted(run.scores(rid)) == [1, 2, 3]
    assert run.output(rid) == []
    assert run.finished(rid).reason is FinishReason.STOP


def test_stop_ids_in_forced_text_end_nothing(gate):
    run = driver(gate)
    rids = [
        run.submit([1, 2], 30, constraint=regex(pattern), params={"stop_token_ids": (1, 4)})
        for pattern in ("abcdef", "a(c|d)becb", "a(b|bb)")
    ]
    run.run()
    for rid, pattern in zip(rids, ("abcdef", "a(c|d)becb", "a(b|bb)")):
        end = run.finished(rid)
        out = text(run.output(rid))
        if end.matched is not None:
            out = out[:-1]
        assert re.fullmatch(pattern, out)
        assert end.reason is FinishReason.STOP
