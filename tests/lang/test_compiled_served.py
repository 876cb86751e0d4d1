"""Compiled programs on a real engine, in process and over HTTP: all of a program in one request."""

import asyncio
import os
import signal
import time
import typing

import pydantic
import pytest

import radixserve.lang as sgl
from radixserve.errors import EngineDead
from tests.lang.test_compiled import STATIC, compiled
from tests.lang.test_suite import GREEDY, outcome

PLACES = ["tiny_engine", "tiny_server"]


@pytest.fixture(scope="module", params=PLACES)
def backend(request):
    if request.param == "tiny_engine":
        yield request.getfixturevalue("tiny_engine")
        return
    endpoint = sgl.RuntimeEndpoint(request.getfixturevalue("tiny_server"))
    yield endpoint
    endpoint.close()


def requests_of(backend):
    return sgl.get_server_info(backend)["running"]


def streamed(program, args, backend):
    state = program.run(**args, backend=backend, stream=True, **GREEDY)
    assert "".join(state.text_iter()) == state.text()
    return state


@pytest.mark.parametrize("case", STATIC, ids=repr)
def test_compiled_is_interpreted_where_it_is_served(backend, case):
    if isinstance(backend, sgl.RuntimeEndpoint) and STATIC.index(case) % 4:
        return  # the engine behind the server is the same, and has all of them
    expected = case.program.run(**case.args, backend=backend, **GREEDY)
    program = compiled(case)
    state = program.run(**case.args, backend=backend, **GREEDY)
    assert case.check(state)
    assert outcome(state) == outcome(expected)
    assert state.ret_value == expected.ret_value or "meta" in repr(case)
    if STATIC.index(case) % 3 == 0:
        assert outcome(streamed(program, case.args, backend)) == outcome(expected)


@sgl.function
def chat(s, word):
    s += sgl.user(f"the quick {word}")
    s += sgl.assistant(sgl.gen("one", max_tokens=4, ignore_eos=True))
    g = s.fork(2)
    g += [sgl.user("a") + sgl.gen("two"), sgl.user("b") + sgl.select("two", ["x", "yy"])]
    g.join()
    s += f"{word}: {s['one']}"
    return [s["one"], {"two": s["two"]}]


@sgl.function
def left_open(s, word):
    s += sgl.user(word) + sgl.assistant(sgl.gen("one", max_tokens=4))
    g = s.fork(2)
    for child in g:
        child += sgl.user("more") + sgl.assistant(sgl.gen("two", max_tokens=20, ignore_eos=True))
    return s["one"]


def test_a_fork_that_nothing_waits_for_is_streamed_to_its_end(backend):
    expected = left_open.run("fox", backend=backend, **GREEDY)
    state = streamed(left_open.compile(), {"word": "fox"}, backend)
    assert state.ret_value == expected.ret_value
    assert len(state.explain().calls) == len(expected.explain().calls) == 3


def test_all_of_a_program_is_one_request(backend, monkeypatch):
    sent = []
    if isinstance(backend, sgl.RuntimeEndpoint):
        ask = backend._http.ask
        monkeypatch.setattr(
            backend._http, "ask", lambda *given: sent.append(given[1]) or ask(*given)
        )
    state = chat.compile().run("fox", backend=backend, **GREEDY)
    assert sent in ([], ["/v1/programs"])
    calls = sorted(state.explain().calls, key=lambda each: each.call)
    assert [each.call for each in calls] == ["0", "1.0.0", "1.1.0"]
    assert all(each.prompt_tokens and each.seconds and each.tries == 1 for each in calls)
    assert state.get_meta_info("two")[1]["scores"]
    assert state.ret_value == [state["one"], {"two": state["two"]}]


def test_a_batch_and_an_event_loop(backend):
    program = chat.compile()
    words = ["fox", "dog", "fox", "cat", "dog"]
    alone = [chat.run(word, backend=backend, **GREEDY).text() for word in words]
    states = program.run_batch([(word,) for word in words], backend=backend, **GREEDY)
    assert [state.text() for state in states] == alone

    async def many():
        runs = [program.arun(word, backend=backend, timeout=60, **GREEDY) for word in words]
        return [state.text() for state in await asyncio.gather(*runs)]

    assert asyncio.run(many()) == alone


def test_patterns_to_stop_at_are_the_same_both_ways(backend):
    options = {"backend": backend, "stop_regex": ["[a-m]{2}", r"\W"], **GREEDY}
    free = chat.run("fox", **options | {"stop_regex": None})
    plain, served = chat.run("fox", **options), chat.compile().run("fox", **options)
    assert outcome(plain) == outcome(served) != outcome(free)


def test_the_same_seed_gives_the_same_both_ways(backend):
    options = {"backend": backend, "temperature": 1.5, "seed": 7, "max_new_tokens": 6}
    first, again = chat.run("fox", **options), chat.compile().run("fox", **options)
    assert outcome(first) == outcome(again)
    assert outcome(chat.compile().run("fox", **options | {"seed": 8})) != outcome(first)


def test_a_variable_can_be_followed(backend):
    program = chat.compile()
    whole = program.run("fox", backend=backend, **GREEDY)

    async def follow():
        state = await program.arun("fox", backend=backend, stream=True, **GREEDY)
        pieces = [each async for each in state.text_async_iter("one", return_meta_data=True)]
        return pieces, await state["two"]

    pieces, two = asyncio.run(follow())
    assert "".join(piece for piece, _ in pieces) == whole["one"]
    assert pieces[-1][1]["prompt_tokens"] > 0
    assert two == whole["two"]


def test_the_constant_prefix_is_warmed(backend):
    sgl.flush_cache(backend)
    long = "so it is written, and so shall it be done. " * 8

    @sgl.function
    def program(s, word):
        s += sgl.system(long) + sgl.user(f"what of the {word}?") + sgl.assistant(sgl.gen("x"))

    tokens = program.warm(backend=backend)
    assert tokens > 60
    state = program.run("fox", backend=backend, **GREEDY)
    assert state.get_meta_info("x")["cached_tokens"] >= tokens - 8  # the end may join other text
    assert program.compile().warm(backend) == tokens


# ---- what goes wrong ----


@sgl.function
def endless(s):
    s += "the quick" + sgl.gen("x", max_tokens=4000, ignore_eos=True)


@sgl.function
def broken(s):
    s += "start"
    g = s.fork(2)
    g += ["a" + sgl.gen("bad", regex="("), "b" + sgl.gen("good", max_tokens=3)]
    g.join()


def wait_until(check):
    end = time.monotonic() + 10
    while not check():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_ends_the_program_where_it_runs(backend, stream):
    with pytest.raises(sgl.DeadlineExceeded):
        endless.compile().run(backend=backend, timeout=0.3, stream=stream).sync()
    wait_until(lambda: requests_of(backend) == 0)


def test_a_deadline_of_one_call(backend):
    @sgl.function
    def program(s):
        s += "the quick" + sgl.gen("x", max_tokens=4000, ignore_eos=True, timeout=0.3)

    for stream in (False, True):
        with pytest.raises(sgl.DeadlineExceeded, match="call 0"):
            program.compile().run(backend=backend, stream=stream).sync()
    wait_until(lambda: requests_of(backend) == 0)


@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_constraint_is_the_original_error(backend, stream):
    def error_of(program):
        with pytest.raises(Exception) as caught:  # noqa: PT011 - compared below
            program.run(backend=backend, stream=stream).sync()
        return caught.value

    plain, there = error_of(broken), error_of(broken.compile())
    assert type(there) is type(plain)
    assert (there.status, there.code, there.param) == (plain.status, plain.code, plain.param)
    wait_until(lambda: requests_of(backend) == 0)


def test_a_cancelled_task_ends_the_program_where_it_runs(backend):
    async def main():
        task = asyncio.create_task(endless.compile().arun(backend=backend))
        while not await asyncio.to_thread(requests_of, backend):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    wait_until(lambda: requests_of(backend) == 0)


def test_an_object_that_cannot_be_made_fails_its_branch_alone(backend):
    def refuse(flag):
        raise ValueError("never right")

    never = typing.Annotated[bool, pydantic.AfterValidator(refuse)]

    @sgl.function
    def program(s):
        g = s.fork(2)
        g += ["a" + sgl.gen("x", schema=never, max_tokens=8), "b" + sgl.gen("x", max_tokens=2)]
        g.join()

    for each in (program, program.compile()):
        with pytest.raises(sgl.TypedOutputError):
            each.run(backend=backend, **GREEDY)


def test_a_killed_engine_fails_compiled_programs(tiny_folder):
    from radixserve.engine import Engine

    settings = {"dtype": "float32", "threads": 1, "kv_tokens": 32768}
    program = endless.compile()
    with Engine(str(tiny_folder), **settings) as engine:
        state = program.run(backend=engine, stream=True)
        wait_until(lambda: requests_of(engine) == 1)
        os.kill(engine._launched.gateway.info.pid, signal.SIGKILL)
        with pytest.raises(EngineDead):
            state.sync()
        with pytest.raises(EngineDead):
            program.run(backend=engine)
