"""Programs on an event loop: arun, async programs, streams, cancellation, and no task left."""

import asyncio
import threading
import time

import pytest

import radixserve.lang as sgl


@sgl.function
def plain(s, word):
    s += word + sgl.gen("a")
    s += "|" + sgl.gen("b")
    return s["b"] + "!"


@sgl.function
async def native(s, word):
    s += word + sgl.gen("a")
    s += "|" + sgl.gen("b")
    return await s["b"] + "!"


@sgl.function
def silent(s, word):
    s += word + sgl.gen("a")
    s += "|" + sgl.gen("b")


def upper(prompt):
    return prompt[-3:].upper()


def run_all(*works):
    """The coroutines side by side; nothing may be left on the loop."""

    async def main():
        results = await asyncio.gather(*works)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return results

    return asyncio.run(main())


@pytest.mark.parametrize("program", [plain, native])
def test_arun_gives_what_run_gives(program):
    [state] = run_all(program.arun("abc", backend=sgl.Mock(upper)))
    same = program.run("abc", backend=sgl.Mock(upper))
    assert state.text() == same.text() == "abcABC|BC|"
    assert (state["a"], state.ret_value) == (same["a"], same.ret_value) == ("ABC", "BC|!")


def test_programs_of_one_loop_run_side_by_side():
    together = threading.Barrier(8)

    def script(prompt):
        if "|" not in prompt:
            together.wait(10)
        return "x"

    mock = sgl.Mock(script)
    states = run_all(*[p.arun(str(i), backend=mock) for i in range(4) for p in (plain, native)])
    assert [state.ret_value for state in states] == ["x!"] * 8


def test_two_thousand_programs_hold_no_thread_each():
    """A body that reads nothing is over before its calls are; an async one never has a thread."""
    peak = 0

    async def watch():
        nonlocal peak
        while True:
            peak = max(peak, threading.active_count())
            await asyncio.sleep(0.01)

    async def main():
        watcher = asyncio.create_task(watch())
        mock = sgl.Mock({"|": "two", "": "one"}, latency=0.3)
        programs = [(native, silent)[i % 2] for i in range(2000)]
        began = time.monotonic()
        states = await asyncio.gather(
            *[program.arun(str(i), backend=mock) for i, program in enumerate(programs)]
        )
        watcher.cancel()
        return states, time.monotonic() - began

    before = threading.active_count()
    states, seconds = asyncio.run(main())
    assert {(state["a"], state["b"]) for state in states} == {("one", "two")}
    assert peak - before < 500  # half of them are plain; those threads come and go
    assert seconds < 300  # one after another they would take 1,200 s


def test_reads_of_an_async_program_are_awaited():
    @sgl.function
    async def program(s):
        s += "q" + sgl.gen("x", stop="!")
        s["y"] = 1
        with pytest.raises(sgl.ProgramError, match="await"):
            f"{s['x']}"
        with pytest.raises(sgl.ProgramError, match="await"):
            "x" in s  # noqa: B015
        with pytest.raises(sgl.ProgramError, match="await"):
            s["x"] == "X"  # noqa: B015
        assert "pending" in repr(s["x"])
        assert (await s["x"], await s.get_var("y"), await s.has("z")) == ("X", 1, False)
        assert (await s.get_meta_info("x"))["finish_reason"]["matched"] == "!"
        with pytest.raises(KeyError):
            await s["z"]
        await s.sync()
        return await s.text(), await s.messages(), await s.error()

    [state] = run_all(program.arun(backend=sgl.Mock(["X!"])))
    assert state.ret_value == ("qX", [], None)


def test_forks_joins_and_copies_of_an_async_program():
    @sgl.function
    async def program(s):
        s += "a" + sgl.gen("first")
        g = s.fork(3)
        g += lambda i: f"{i}" + sgl.gen("x")
        await g.join()
        async with s.copy() as scratch:
            scratch += sgl.gen("y")
        s += "".join(await s["x"])

    mock = sgl.Mock(lambda prompt: f"<{prompt[-1]}>")
    [state] = run_all(program.arun(backend=mock))
    assert state["x"] == ["<0>", "<1>", "<2>"]
    assert state["y"] == ["<>>"]
    assert state.text() == "a<a><0><1><2>"


def test_nested_async_programs():
    @sgl.function
    async def outer(s):
        s += "["
        result = await native(s, "w")
        await plain_body(s)
        with pytest.raises(TypeError, match="await native"):
            s += native("w")
        s += "]"
        return result

    async def plain_body(s):
        s += "+"

    [state] = run_all(outer.arun(backend=sgl.Mock(["1", "2"])))
    assert (state.text(), state.ret_value) == ("[w1|2+]", "2!")


@pytest.mark.parametrize("stream", [False, True])
def test_run_takes_async_programs_too(stream):
    state = native.run("abc", backend=sgl.Mock(upper), stream=stream)
    assert "".join(state.text_iter()) == "abcABC|BC|"
    assert state.ret_value == "BC|!"


@pytest.mark.parametrize("program", [plain, native])
def test_streams_on_a_loop(program):
    async def main():
        state = await program.arun("abc", backend=sgl.Mock(upper), stream=True)
        increments = [each async for each in state]
        named = [each async for each in state.text_async_iter("a")]
        return increments, named, await state["b"], await state.ret_value()

    increments, named, b, result = asyncio.run(main())
    assert "".join(increments) == "abcABC|BC|"
    assert "".join(named) == "ABC"
    assert (b, result) == ("BC|", "BC|!")


class Hanging(sgl.Mock):
    """Calls of which the prompt has the word are answered only when they are aborted."""

    def __init__(self, word=""):
        super().__init__(lambda prompt: prompt)
        self.word = word
        self.entered = threading.Semaphore(0)
        self.events = {}

    def generate(self, body):
        event = self.events.setdefault(body["rid"], threading.Event())
        self.entered.release()
        if self.word in "".join(part.get("text", "") for part in body["input"]):
            assert event.wait(20)
            raise RuntimeError("aborted")
        return super().generate(body)

    def stream(self, body):
        yield self.generate(body)

    def abort(self, rid):
        super().abort(rid)
        self.events.setdefault(rid, threading.Event()).set()


async def entered(mock, times):
    for _ in range(times):
        await asyncio.to_thread(mock.entered.acquire)


@pytest.mark.parametrize("program", [plain, native])
@pytest.mark.parametrize("stream", [False, True])
def test_cancelling_the_task_aborts_the_calls(program, stream):
    mock = Hanging()

    async def main():
        async def use():
            state = await program.arun("q", backend=mock, stream=stream)
            async for _ in state:
                pass

        task = asyncio.create_task(use())
        await entered(mock, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(100):
            if mock.aborted and asyncio.all_tasks() == {asyncio.current_task()}:
                return
            await asyncio.sleep(0.02)
        raise AssertionError("a task or a call was left")

    asyncio.run(main())
    assert len(mock.aborted) == 1


def test_cancelling_ends_the_forks_too():
    mock = Hanging()

    @sgl.function
    async def program(s):
        g = s.fork(3)
        g += sgl.gen("x")
        await g.join()

    async def main():
        task = asyncio.create_task(program.arun(backend=mock))
        await entered(mock, 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert len(mock.aborted) == 3


def test_leaving_a_streamed_state_ends_its_run():
    mock = Hanging("never")

    @sgl.function
    async def program(s):
        s += "q" + sgl.gen("x")
        await s["x"]
        s += "never" + sgl.gen("y")
        await s["y"]

    async def main():
        async with await program.arun(backend=mock, stream=True) as state:
            assert await state["x"] == "q"
            await entered(mock, 2)
        return await state.error()

    assert isinstance(asyncio.run(main()), sgl.ProgramCancelled)
    assert len(mock.aborted) == 1


def test_a_run_can_be_cancelled_from_another_thread():
    mock = Hanging()
    state = plain.run("q", backend=mock, stream=True)
    mock.entered.acquire()
    state.cancel()
    with pytest.raises((sgl.ProgramCancelled, RuntimeError)):
        state["a"]
    assert len(mock.aborted) == 1


def test_a_read_that_would_stop_its_own_loop_raises():
    @sgl.function
    async def program(s):
        s += sgl.gen("x")
        sgl.ProgramState(s._run, s._branch)["x"]

    async def main():
        with pytest.raises(sgl.ProgramError, match="block the event loop"):
            await program.arun(backend=sgl.Mock(["X"], latency=0.05))

    asyncio.run(main())


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_exit_of_the_program_reaches_the_caller(stop):
    @sgl.function
    async def program(s):
        raise stop("mine")

    with pytest.raises(stop):
        program.run(backend=sgl.Mock())
    with pytest.raises(stop):
        program.run_batch([{}, {}], backend=sgl.Mock(), return_exceptions=True)


def test_the_functions_context_is_the_callers():
    import contextvars

    who = contextvars.ContextVar("who")

    @sgl.function
    def program(s):
        return who.get()

    async def main():
        who.set("me")
        return (await program.arun(backend=sgl.Mock())).ret_value

    assert asyncio.run(main()) == "me"
