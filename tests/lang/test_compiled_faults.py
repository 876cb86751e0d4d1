"""Something breaks while a compiled program runs: the original error, and nothing is left."""

import threading
import time

import pytest

import radixserve.lang as sgl
from tests.lang import test_faults as faults
from tests.lang.test_compiled_ways import ask

PLACES = [
    faults.at_the_first_call,
    faults.at_a_select,
    faults.in_a_fork_nobody_reads,
    faults.in_a_nested_program,
]
FAULTS = ["500", "400", "drop", "half", "hang"]
CASES = [
    pytest.param(program, way, fault, id=f"{program.__name__}-{way.__name__}-{fault}")
    for program in PLACES
    for way in faults.WAYS
    for fault in FAULTS
    # run_batch's items would differ in what is folded in
    if way is not faults.run_batch and faults.can_happen(program, way, fault)
]


class Bound:
    """A compiled program that takes its fault as the others do."""

    def __init__(self, program, fault):
        self.compiled = program.compile(fault=fault)

    def run(self, _, **options):
        return self.compiled.run(**options)

    async def arun(self, _, **options):
        return await self.compiled.arun(**options)


@pytest.mark.parametrize(("program", "way", "fault"), CASES)
def test_the_original_error_arrives_in_time(program, way, fault):
    """The faults of test_faults, in compiled programs whose calls are made here."""
    began = time.monotonic()
    with pytest.raises(sgl.LangError) as caught:
        way(Bound(program, fault), fault, faults.Faulty())
    assert time.monotonic() - began < faults.SOON
    assert faults.matches(fault, caught.value), repr(caught.value)


@sgl.function
def forked(s, fault):
    s += "start "
    g = s.fork(3)
    g += ["one" + sgl.gen("x"), f"{fault}" + sgl.gen("x"), "two" + sgl.gen("x")]
    for child in g:
        child += f"{child['x']} more" + sgl.gen("y")
    g.join()
    s += "".join(s["y"]) + sgl.gen("never")


def test_siblings_finish_and_nothing_is_left():
    mock = faults.Faulty()
    with pytest.raises(sgl.BackendError, match="fault 500"):
        forked.compile().run("500", backend=mock)
    assert sorted(call["program"]["call"] for call in mock.calls) == [
        f"0.{i}.{k}" for i in (0, 2) for k in (0, 1)
    ]


def test_a_join_of_what_failed_ends_the_branch():
    @sgl.function
    def program(s):
        g = s.fork(2)
        g += ["500" + sgl.gen(), "fine" + sgl.gen()]  # no variable is gathered
        g.join()
        s += "never" + sgl.gen("x")

    mock = faults.Faulty()
    with pytest.raises(sgl.BackendError, match="fault 500"):
        program.compile().run(backend=mock)
    assert [call["program"]["call"] for call in mock.calls] == ["0.1.0"]


def test_an_item_that_fails_leaves_the_others_alone():
    results = forked.compile().run_batch(
        [("fine",), ("500",), ("drop",), ("fine",)],
        backend=faults.Faulty(),
        return_exceptions=True,
    )
    kinds = [type(each).__name__ for each in results]
    assert kinds == ["ProgramState", "BackendError", "BackendError", "ProgramState"]


def test_a_value_that_two_branches_wait_for_in_turn_fails_them_both():
    """The first waits for the second, which waits for what failed in the first."""

    @sgl.function
    def program(s):
        a, b = s.fork(2)
        a += "500" + sgl.gen("x")
        b += f"{a['x']}" + sgl.gen("y")
        a += f"{b['y']}" + sgl.gen("z")
        s["z"] = a["z"]

    began = time.monotonic()
    with pytest.raises(sgl.BackendError, match="fault 500"):
        program.compile().run(backend=faults.Faulty())
    assert time.monotonic() - began < faults.SOON


def test_cancelling_from_another_thread():
    state = forked.compile().run("hang", backend=faults.Faulty(), stream=True)
    threading.Timer(0.1, state.cancel).start()
    with pytest.raises(sgl.ProgramCancelled):
        state.sync()


def test_a_program_of_another_kind_elsewhere_is_an_error():
    """A server that answers other calls than the graph has."""

    class Elsewhere(sgl.Mock):
        def program(self, body):
            return {"calls": []}

        async def aprogram(self, body):
            return {"calls": []}

        async def astream_program(self, body):
            yield {"result": {}}

    for options in ({}, {"stream": True}, {"timeout": 5}):
        with pytest.raises(sgl.BackendError, match="other calls elsewhere"):
            ask.compile().run("d", "q", backend=Elsewhere(), **options).sync()


def test_a_program_is_asked_for_again_where_nothing_has_come():
    class Shy(sgl.Mock):
        asked = 0

        def program(self, body):
            raise AssertionError

        async def aprogram(self, body):
            self.asked += 1
            assert body["retries"] == 2
            if self.asked < 3:
                raise sgl.BackendError(503, "loading", "not yet")
            meta = {"finish_reason": {"type": "stop"}, "prompt_tokens": 1}
            reply = {"text": "r", "output_ids": [1], "meta_info": meta}
            return {"calls": [{"call": "0", "reply": reply, "seconds": 1.5, "tries": 1}]}

        async def astream_program(self, body):
            raise AssertionError
            yield

    backend = Shy()
    state = ask.compile().run("d", "q", backend=backend, retries=2)
    assert state.ret_value == "r!"
    assert state.explain().calls[0].seconds == 1.5
    backend.asked = -5
    with pytest.raises(sgl.BackendError, match="not yet"):
        ask.compile().run("d", "q", backend=backend, retries=2)
