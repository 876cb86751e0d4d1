"""Errors raise where values are used, with their cause, and no wait outlives them."""

import threading

import pytest

import radixserve.lang as sgl


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
