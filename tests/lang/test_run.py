"""How a run ends: errors where values are used, cancellation, no wait and no thread left."""

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


def failing(*bad):
    def script(prompt):
        if any(word in prompt for word in bad):
            raise RuntimeError("no GPU") from OSError("unplugged")
        return f"<{prompt}>"

    return sgl.Mock(script)


def test_an_error_raises_where_the_value_is_used_with_its_cause(run):
    lines = []

    def body(s):
        s += "bad" + sgl.gen("x")
        lines.append("appended")
        s += "more" + sgl.gen("y")
        lines.append("appended more")
        try:
            s["y"]
        finally:
            lines.append("used")

    with pytest.raises(RuntimeError, match="no GPU") as caught:
        run(body, failing("bad"))
    assert isinstance(caught.value.__cause__, OSError)
    assert lines == ["appended", "appended more", "used"]
    assert "raised by gen('x')" in caught.value.__notes__


def test_an_error_nobody_looked_at_raises_at_the_end(run):
    def body(s):
        s += "bad" + sgl.gen("x")

    with pytest.raises(RuntimeError, match="no GPU"):
        run(body, failing("bad"))


@pytest.mark.parametrize(
    "use",
    [
        lambda s: s["x"],
        lambda s: s.get_meta_info("x"),
        lambda s: s.text(),
        lambda s: s.messages(),
        lambda s: s.sync(),
        lambda s: "x" in s,
        lambda s: list(s.text_iter()),
        lambda s: list(s.text_iter("x")),
    ],
)
def test_every_way_of_using_the_state_raises_and_handling_it_is_enough(run, use):
    def body(s):
        s += "bad" + sgl.gen("x")
        with pytest.raises(RuntimeError, match="no GPU"):
            use(s)
        return "fallback"

    assert run(body, failing("bad")).ret_value == "fallback"


def test_error_returns_it_and_what_was_there_stays(run):
    def body(s):
        s += "good" + sgl.gen("a")
        s += "bad" + sgl.gen("a")
        s += sgl.gen("b")
        s["c"] = 1
        return s.error()

    state = run(body, failing("bad"))
    assert str(state.ret_value) == "no GPU"
    assert state.error() is state.ret_value
    for name in "abc":  # "a" was to be replaced: its old value would be a lie
        with pytest.raises(RuntimeError, match="no GPU"):
            state[name]


def test_a_value_made_before_the_error_stays_readable(run):
    def body(s):
        s += "good" + sgl.gen("a") + "bad" + sgl.gen("b")
        assert s["a"] == "<good>"
        assert "a" in s
        assert s.error() is not None

    assert run(body, failing("bad"))["a"] == "<good>"


def test_fifty_forks_and_one_fails(run):
    seen = {}

    def body(s):
        g = s.fork(50)
        g += lambda i: f"{i:02}" + sgl.gen("x")
        seen["ok"] = [g[i]["x"] for i in range(50) if i != 17]
        with pytest.raises(RuntimeError, match="no GPU"):
            g[17]["x"]

    run(body, failing("17"))
    assert seen["ok"] == [f"<{i:02}>" for i in range(50) if i != 17]


def test_join_raises_the_childs_error_and_the_parent_goes_on(run):
    def body(s):
        s += "a"
        g = s.fork(3)
        g += lambda i: f"{i}" + sgl.gen("x")
        with pytest.raises(RuntimeError, match="no GPU"):
            g.join()
        assert "x" not in s
        s += "b" + sgl.gen("y")

    state = run(body, failing("a1", "a2"))
    assert state["y"] == "<ab>"
    assert state.error() is None


def test_a_childs_error_that_nobody_looked_at_raises_from_run(run):
    def body(s):
        g = s.fork(3)
        g += lambda i: f"{i}" + sgl.gen("x")
        s += "a" + sgl.gen("y")

    with pytest.raises(RuntimeError, match="no GPU"):
        run(body, failing("1"))


def test_a_fork_of_a_failed_state_fails_on_access(run):
    def body(s):
        s += "bad" + sgl.gen("x")
        g = s.fork(2)
        g += sgl.gen("y")
        with pytest.raises(RuntimeError, match="no GPU"):
            g[1]["y"]

    mock = failing("bad")
    run(body, mock)
    assert len(mock.calls) == 1


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


@pytest.mark.parametrize(
    ("reply", "what"),
    [
        ({}, "no prompt ids"),
        ([], "0 outputs for n = 1"),
        ("text", "an object"),
        ({"meta_info": {"prompt": {"ids": []}}}, "finish_reason"),
        ({"meta_info": {"prompt": {"ids": []}, "finish_reason": {"type": "stop"}}}, "output_ids"),
    ],
)
def test_a_malformed_reply_is_an_error_of_the_backend(run, reply, what):
    class Broken(sgl.Mock):
        def generate(self, body):
            return reply

    def body(s):
        s += "q" + sgl.gen("x")

    with pytest.raises(sgl.BackendError, match=what):
        run(body, Broken())


def test_scores_that_do_not_cover_the_choices_are_an_error(run):
    class Broken(sgl.Mock):
        def choose(self, body):
            reply = super().choose(body)
            reply["choices"][0]["logprobs"].pop()
            return reply

    def body(s):
        s += "q" + sgl.select("x", ["a", "b"])

    with pytest.raises(sgl.BackendError, match="1 ids but 0"):
        run(body, Broken())


def test_an_aborted_call_is_an_error(run):
    class Aborted(sgl.Mock):
        def generate(self, body):
            reply = super().generate(body)
            reply["meta_info"]["finish_reason"] = {"type": "abort", "message": "shutting down"}
            return reply

    def body(s):
        s += "q" + sgl.gen("x")

    with pytest.raises(sgl.BackendError, match="shutting down") as caught:
        run(body, Aborted(["A"]))
    assert caught.value.status == 499


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
    woken, errors = threading.Event(), []

    class Deaf(Gate):
        def generate(self, body):
            self.entered.release()
            assert woken.wait(10)
            return sgl.Mock.generate(self, body)

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


def test_a_reader_hears_of_a_failure_before_the_program_ends():
    go = threading.Event()

    @sgl.function
    def program(s):
        s += "bad" + sgl.gen("x")
        s.error()
        assert go.wait(10)
        return "done"

    state = program.run(stream=True, backend=sgl.Mock())
    with pytest.raises(sgl.BackendError):
        state["x"]
    go.set()
    assert state.ret_value == "done"


def test_what_is_appended_after_a_failure_does_not_leave_old_values_standing(run):
    def body(s):
        s += "good" + sgl.gen("a") + "bad" + sgl.gen("b")
        assert s.error() is not None
        s += sgl.gen("a")
        [child] = s.fork(1)
        for state in (s, child):
            with pytest.raises(RuntimeError, match="no GPU"):
                state["a"]

    run(body, failing("bad"))


def test_a_value_being_replaced_is_waited_for(run):
    entered = threading.Event()

    def script(prompt):
        if prompt == "one":
            entered.set()
            threading.Event().wait(0.05)
        return "two" if prompt == "one" else "one"

    def body(s):
        [child] = s.fork(1)
        child += sgl.gen("x")
        child.sync()
        child += sgl.gen("x")
        assert entered.wait(10)
        assert child["x"] == "two"

    run(body, sgl.Mock(script))
