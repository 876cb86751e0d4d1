"""Streams: increments that add up, for threads and event loops, and errors at their end."""

import asyncio
import threading

import pytest

import radixserve.lang as sgl


@sgl.function
def two_answers(s):
    s += "Q: " + sgl.gen("a", stop=".")
    s += "; " + sgl.gen("b")
    return len(s["a"])


def mock():
    return sgl.Mock(["first. more", "second"])


def test_increments_add_up_to_the_text():
    state = two_answers.run(stream=True, backend=mock())
    increments = list(state.text_iter())
    assert all(increments)
    assert "".join(increments) == state.text() == "Q: first; second"
    assert state.ret_value == 5


def test_increments_of_variables_one_after_another():
    state = two_answers.run(stream=True, backend=mock())
    assert "".join(state.text_iter("a")) == "first"
    assert "".join(state.text_iter("b")) == "second"
    assert state["b"] == "second"
    assert state.get_meta_info("a")["finish_reason"]["matched"] == "."


def test_calls_of_a_streamed_run_are_streamed():
    backend = mock()
    two_answers.run(stream=True, backend=backend).sync()
    assert [call["stream"] for call in backend.calls] == [True, True]


def test_the_reader_sees_text_while_it_is_being_generated():
    read_so_far = threading.Event()

    class Slow(sgl.Mock):
        def stream(self, body):
            for i, chunk in enumerate(super().stream(body)):
                if i == 2:
                    assert read_so_far.wait(10)
                yield chunk

    state = two_answers.run(stream=True, backend=Slow(["first", "second"]))
    text = ""
    for increment in state.text_iter("a"):
        text += increment
        if text == "fi":
            read_so_far.set()
    assert text == "first"
    state.sync()


def test_a_late_reader_gets_everything():
    state = two_answers.run(stream=True, backend=mock())
    state.sync()
    assert "".join(state.text_iter("a")) == "first"
    assert "".join(state.text_iter()) == "Q: first; second"


def test_results_that_were_not_streamed_can_be_read_the_same_way():
    state = two_answers.run(backend=mock())
    assert list(state.text_iter("b")) == ["second"]
    assert list(state.text_iter()) == ["Q: first; second"]


def test_values_that_were_set_and_selected_can_be_read_too():
    @sgl.function
    def program(s):
        s["set"] = "given"
        with s.var_scope("scope"):
            s += "in "
            s += sgl.select("x", ["out"])

    state = program.run(stream=True, backend=sgl.Mock())
    assert ["".join(state.text_iter(name)) for name in ("scope", "x", "set")] == [
        "in out",
        "out",
        "given",
    ]


def test_an_unknown_name_ends_with_the_program():
    state = two_answers.run(stream=True, backend=mock())
    with pytest.raises(KeyError, match="other"):
        list(state.text_iter("other"))
    assert "other" not in state


def test_forks_of_a_streamed_run_stream():
    @sgl.function
    def program(s):
        g = s.fork(2)
        g += lambda i: f"{i}:" + sgl.gen("x")
        for child in g:
            s += "".join(child.text_iter("x")) + "|"

    state = program.run(stream=True, backend=sgl.Mock(lambda prompt: prompt * 2))
    assert "".join(state.text_iter()) == "0:0:|1:1:|"


def test_a_new_value_of_the_same_name_is_read_anew():
    @sgl.function
    def program(s):
        [child] = s.fork(1)
        for _ in range(3):
            child += "+" + sgl.gen("x")
            s += "".join(child.text_iter("x"))

    state = program.run(backend=sgl.Mock(["one", "two", "three"]))
    assert state.text() == "onetwothree"


def test_a_value_still_queued_is_the_one_that_is_read():
    go = threading.Event()

    def script(prompt):
        if prompt == "one":
            assert go.wait(10)
        return {"": "one", "one": "-", "one-": "two"}[prompt]

    @sgl.function
    def program(s):
        [child] = s.fork(1)
        child += sgl.gen("x")
        child.sync()
        child += sgl.gen("y") + sgl.gen("x")
        threading.Timer(0.05, go.set).start()
        return list(child.text_iter("x"))

    assert program.run(backend=sgl.Mock(script)).ret_value == ["two"]


def test_the_return_value_is_waited_for():
    @sgl.function
    def program(s):
        threading.Event().wait(0.05)
        return "done"

    assert program.run(stream=True, backend=sgl.Mock()).ret_value == "done"


class Torn(sgl.Mock):
    def stream(self, body):
        yield next(super().stream(body))
        raise ConnectionError("torn")


@pytest.mark.parametrize("name", [None, "a"])
def test_an_error_comes_after_the_text_before_it(name):
    state = two_answers.run(stream=True, backend=Torn(["first"]))
    got = []
    with pytest.raises(ConnectionError, match="torn"):
        got.extend(state.text_iter(name))
    assert "".join(got) == ("Q: f" if name is None else "f")


@pytest.mark.parametrize(
    "use",
    [
        lambda state: state["b"],
        lambda state: state.text(),
        lambda state: state.sync(),
        lambda state: state.ret_value,
        lambda state: list(state.text_iter("b")),
    ],
)
def test_an_exception_of_the_program_reaches_the_reader(use):
    @sgl.function
    def program(s):
        s += "Q" + sgl.gen("a")
        raise ZeroDivisionError("mine")

    state = program.run(stream=True, backend=sgl.Mock(["A"]))
    with pytest.raises(ZeroDivisionError, match="mine"):
        use(state)
    assert isinstance(state.error(), ZeroDivisionError)
    assert state["a"] == "A"


def test_a_childs_unseen_error_reaches_the_reader():
    @sgl.function
    def program(s):
        g = s.fork(1)
        g += "Q" + sgl.gen("a")

    state = program.run(stream=True, backend=sgl.Mock())
    with pytest.raises(sgl.BackendError, match="no reply left"):
        state.sync()


def test_a_stream_without_its_end_is_an_error():
    class Short(sgl.Mock):
        def stream(self, body):
            yield next(super().stream(body))

    state = two_answers.run(stream=True, backend=Short(["first"]))
    with pytest.raises(sgl.BackendError, match="ended before"):
        state.sync()


def test_a_streamed_state_is_for_reading():
    state = two_answers.run(stream=True, backend=mock())
    with pytest.raises(sgl.ProgramError):
        state += "x"
    state.sync()


def test_async_increments():
    async def read():
        state = two_answers.run(stream=True, backend=mock())
        text = "".join([each async for each in state.text_async_iter()])
        pairs = [pair async for pair in state.text_async_iter("b", return_meta_data=True)]
        return text, pairs

    text, pairs = asyncio.run(read())
    assert text == "Q: first; second"
    assert "".join(delta for delta, _ in pairs) == "second"
    assert pairs[-1][1]["finish_reason"]["type"] == "stop"


def test_many_async_readers_need_no_threads_of_their_own():
    go = threading.Event()

    class Slow(sgl.Mock):
        def stream(self, body):
            assert go.wait(10)
            yield from super().stream(body)

    async def read():
        state = two_answers.run(stream=True, backend=Slow(["first", "second"]))
        before = threading.active_count()

        async def one():
            return "".join([each async for each in state.text_async_iter("b")])

        readers = [asyncio.create_task(one()) for _ in range(20)]
        await asyncio.sleep(0.02)
        assert threading.active_count() == before
        go.set()
        return await asyncio.gather(*readers)

    assert asyncio.run(read()) == ["second"] * 20


def test_async_errors_and_abandoned_readers():
    async def read():
        state = two_answers.run(stream=True, backend=Torn(["first"]))
        with pytest.raises(ConnectionError, match="torn"):
            async for _ in state.text_async_iter("a"):
                pass
        with pytest.raises(ValueError, match="var_name"):
            async for _ in state.text_async_iter(return_meta_data=True):
                pass
        other = two_answers.run(stream=True, backend=mock())
        async for _ in other.text_async_iter():
            break
        return other

    asyncio.run(read()).sync()
