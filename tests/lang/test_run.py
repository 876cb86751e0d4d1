"""How a run ends: by exception, cancellation or interrupt, and with no thread left."""

import threading

import pytest

import radixserve.lang as sgl


class Gate(sgl.Mock):
    """A mock whose calls wait until they are let go or aborted."""

    def __init__(self, waits=lambda prompt: True):
        super().__init__(lambda prompt: prompt)
        self.entered = threading.Semaphore(0)
        self._waits = waits
        self._aborts = {}

    def generate(self, body):
        abort = self._aborts.setdefault(body["rid"], threading.Event())
        self.entered.release()
        if self._waits("".join(part.get("text", "") for part in body["input"])):
            assert abort.wait(20)
            raise RuntimeError("aborted")
        return super().generate(body)

    def abort(self, rid):
        super().abort(rid)
        self._aborts[rid].set()


def test_an_exception_of_the_program_ends_its_forks(run):
    gate = Gate()

    def body(s):
        g = s.fork(3)
        g += "q" + sgl.gen("x")
        for _ in range(3):
            gate.entered.acquire()
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        run(body, gate)
    assert len(gate.aborted) == 3


def test_the_run_waits_for_forks_that_are_still_working(run):
    done = []

    def script(prompt):
        threading.Event().wait(0.05)
        done.append(prompt)
        return prompt

    def body(s):
        g = s.fork(2)
        g += lambda i: f"{i}" + sgl.gen("x")
        return g

    state = run(body, sgl.Mock(script))
    assert sorted(done) == ["0", "1"]
    assert [child["x"] for child in state.ret_value] == ["0", "1"]


def test_one_failure_in_a_batch_ends_the_other_runs():
    gate = Gate(waits=lambda prompt: prompt != "3")

    @sgl.function
    def program(s, i):
        s += str(i) + sgl.gen("x")
        if i == 3:
            assert s["x"] == "3"
            for _ in range(4):
                gate.entered.acquire()
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        program.run_batch([(i,) for i in range(4)], backend=gate, num_threads=4)
    assert len(gate.aborted) == 3


def test_closing_a_batch_generator_ends_its_runs():
    gate = Gate(waits=lambda prompt: prompt != "0")

    @sgl.function
    def program(s, i):
        s += str(i) + sgl.gen("x")

    states = program.run_batch(
        [(i,) for i in range(3)], backend=gate, num_threads=3, generator_style=True
    )
    assert next(states)["x"] == "0"
    for _ in range(3):
        gate.entered.acquire()
    states.close()
    assert len(gate.aborted) == 2


def test_an_interrupt_is_not_kept_but_raised(run):
    def script(prompt):
        raise KeyboardInterrupt

    def body(s):
        s += "q" + sgl.gen("x")
        raise AssertionError("not reached")

    with pytest.raises(KeyboardInterrupt):
        run(body, sgl.Mock(script))


def test_an_interrupt_in_a_fork_wakes_those_who_wait(run):
    def script(prompt):
        raise KeyboardInterrupt

    def body(s):
        g = s.fork(1)
        g += "q" + sgl.gen("x")
        g[0]["x"]

    with pytest.raises(KeyboardInterrupt):
        run(body, sgl.Mock(script))


def test_the_runs_threads_have_ended_when_it_raises(run):
    class Slow(Gate):
        def generate(self, body):
            try:
                return super().generate(body)
            finally:
                threading.Event().wait(0.05)

    gate, before = Slow(), threading.active_count()

    def body(s):
        g = s.fork(2)
        g += "q" + sgl.gen("x")
        for _ in range(2):
            gate.entered.acquire()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(body, gate)
    assert threading.active_count() == before


def test_a_cancelled_run_stops_waiting_and_calls_no_more():
    """The backend ignores the abort: the wait for the fork's value must end all the same."""
    woken, answered, errors = threading.Event(), threading.Event(), []

    class Deaf(Gate):
        def generate(self, body):
            self.entered.release()
            assert woken.wait(60)
            reply = sgl.Mock.generate(self, body)
            answered.set()
            return reply

        def abort(self, rid):
            self.aborted.append(rid)

    deaf = Deaf()

    @sgl.function
    def program(s, fails):
        if fails:
            deaf.entered.acquire()
            raise ZeroDivisionError("mine")
        [child] = s.fork(1)
        child += "q" + sgl.gen("x")
        try:
            child["x"]
        except sgl.ProgramCancelled as error:
            errors.append(error)
            woken.set()
        s += "more" + sgl.gen("y")
        errors.append(s.error())

    with pytest.raises(ZeroDivisionError, match="mine"):
        program.run_batch([(True,), (False,)], backend=deaf)
    assert [type(error) for error in errors] == [sgl.ProgramCancelled] * 2
    assert answered.wait(10), "in a thread that nobody waits for any more"
    assert len(deaf.calls) == len(deaf.aborted) == 1


def test_an_endless_stream_ends_with_its_program():
    started, closed = threading.Event(), threading.Event()

    class Endless(sgl.Mock):
        def stream(self, body):
            try:
                while True:
                    started.set()
                    yield {"text": "", "output_ids": [], "meta_info": {"finish_reason": None}}
            finally:
                closed.set()

    @sgl.function
    def program(s):
        g = s.fork(1)
        g += sgl.gen("x")
        assert started.wait(10)
        raise ZeroDivisionError("mine")

    state = program.run(stream=True, backend=Endless())
    assert isinstance(state.error(), ZeroDivisionError)
    with pytest.raises(ZeroDivisionError, match="mine"):
        state.ret_value  # noqa: B018
    assert closed.is_set()
