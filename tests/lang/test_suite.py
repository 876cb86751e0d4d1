"""The programs of programs.py on every backend of ours, each in every way of running it."""

import asyncio
import random

import pytest

import radixserve.lang as sgl
from radixserve.lang.backends.samples import is_constrained
from tests.lang.programs import SHORT
from tests.lang.programs_async import CASES

GREEDY = {"temperature": 0, "max_new_tokens": SHORT}
PLACES = ["mock", "tiny_engine", "tiny_server"]


def words(prompt, body):
    """Some words, the same for the same prompt; what is bound is made up by the mock."""
    if is_constrained(body["sampling_params"]):
        raise sgl.BackendError(500, "exhausted", "made up")
    rng = random.Random(prompt)
    return " ".join(rng.choice(["fox", "dog", "quick"]) for _ in range(rng.randint(1, 3)))


class Steady(sgl.Mock):
    """Made-up texts too are the same for the same prompt."""

    def _made_up(self, params, n):
        self._rng.seed(repr(sorted(params.items(), key=str)))
        return super()._made_up(params, n)


# The mock, being quick, is run in every way; the others in those that differ for them.
FEWER = {
    "tiny_engine": ("on a loop", "streamed", "in a batch"),
    "tiny_server": ("on a loop", "streamed"),
}


@pytest.fixture(scope="session", params=PLACES)
def place(request):
    return request.param


@pytest.fixture(scope="session")
def backend(request, place):
    if place == "mock":
        yield Steady(words, is_instant=True, cuts=True, logprob=lambda c, t: -len(c + t) % 7 - 0.5)
    elif place == "tiny_engine":
        yield request.getfixturevalue("tiny_engine")
    else:
        endpoint = sgl.RuntimeEndpoint(request.getfixturevalue("tiny_server"))
        yield endpoint
        endpoint.close()


def test_there_are_enough_of_them():
    assert len(CASES) >= 40
    assert len({repr(case) for case in CASES}) == len(CASES)


def outcome(state):
    """What must not depend on how a program was run."""
    names = state._branch.interpreter.variables
    return state.text(), {name: state[name] for name in names}, state.messages()


def streamed(case, backend):
    state = case.program.run(**case.args, backend=backend, stream=True, **GREEDY)
    assert "".join(state.text_iter()) == state.text()
    return state


WAYS = {
    "in a thread": lambda case, backend: case.program.run(
        **case.args, backend=backend, use_thread=False, **GREEDY
    ),
    "on a loop": lambda case, backend: asyncio.run(
        case.program.arun(**case.args, backend=backend, **GREEDY)
    ),
    "streamed": streamed,
    "in a batch": lambda case, backend: case.program.run_batch(
        [case.args] * 2, backend=backend, **GREEDY
    )[1],
    "with a deadline": lambda case, backend: case.program.run(
        **case.args, backend=backend, timeout=60, retries=1, **GREEDY
    ),
}


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_a_program_and_all_ways_of_running_it(backend, place, case):
    state = case.program.run(**case.args, backend=backend, **GREEDY)
    case.check(state)
    assert case.check(state), outcome(state)
    expected = outcome(state)
    for name in FEWER.get(place, WAYS):
        assert outcome(WAYS[name](case, backend)) == expected, name


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_an_engine_and_a_server_say_the_same(tiny_engine, tiny_server, case, closing):
    endpoint = closing(sgl.RuntimeEndpoint(tiny_server))
    here = case.program.run(**case.args, backend=tiny_engine, **GREEDY)
    there = case.program.run(**case.args, backend=endpoint, **GREEDY)
    assert outcome(here) == outcome(there)


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_a_recorded_program_replays(case):
    recorder = sgl.Recorder(Steady(words))
    first = case.program.run(**case.args, backend=recorder, **GREEDY)
    again = case.program.run(**case.args, backend=sgl.Replay(recorder), **GREEDY)
    assert outcome(first) == outcome(again)


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_every_program_can_be_drawn(case):
    drawn = str(case.program.trace(**case.args))
    assert drawn.startswith(repr(case))
