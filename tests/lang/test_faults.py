"""Something breaks at every wait: the caller gets the original error in time, the others finish."""

import asyncio
import os
import signal
import threading
import time

import pytest

import radixserve.lang as sgl
from tests.lang import servers

SOON = 8.0  # seconds; this machine may be busy, no wait of ours takes one


@pytest.fixture(scope="module")
def server():
    with servers.Native() as server:
        yield server


@pytest.fixture(params=["http", "mock"])
def backend(request, server, closing):
    if request.param == "http":
        return closing(sgl.RuntimeEndpoint(server.url))
    return Faulty()


class Faulty(sgl.Mock):
    """The same faults without a server. "hang" is answered when it is aborted."""

    def __init__(self):
        super().__init__(lambda prompt: prompt)
        self.held = {}

    def _fault(self, body):
        text = "".join(part.get("text", "") for part in body["input"])
        if "500" in text:
            raise sgl.BackendError(500, "c", "fault 500")
        if "400" in text:
            raise sgl.BackendError(400, "c", "fault 400", "sampling_params.json_schema")
        if "drop" in text or ("half" in text and not body["stream"]):
            raise sgl.BackendError(0, "connection_error", "lost")
        if "hang" in text:
            self.held.setdefault(body["rid"], threading.Event()).wait(30)
            raise RuntimeError("aborted")
        return text

    def generate(self, body):
        self._fault(body)
        return super().generate(body)

    def choose(self, body):
        self._fault(body)
        return super().choose(body)

    def stream(self, body):
        text = self._fault(body)
        for chunk in super().stream(body):
            yield chunk
            if "half" in text:
                raise sgl.BackendError(502, "stream_ended", "the stream ended before its last")

    def abort(self, rid):
        super().abort(rid)
        self.held.setdefault(rid, threading.Event()).set()


class Boom(Exception):
    """Raised by the user's own function."""


def matches(fault, error):
    match fault:
        case "500" | "400":
            return isinstance(error, sgl.BackendError) and error.status == int(fault)
        case "drop" | "half":
            return isinstance(error, sgl.BackendError) and error.status in (0, 502)
        case "hang":
            return isinstance(error, sgl.DeadlineExceeded)
        case _:
            return isinstance(error, Boom)


# ---- where it breaks ----


@sgl.function
def at_the_first_call(s, fault):
    s += fault + sgl.gen("x", timeout=limit(fault))
    boom(fault)
    return s["x"]


@sgl.function
def at_a_later_call(s, fault):
    s += "fine" + sgl.gen("before")
    s += fault + sgl.gen("x", timeout=limit(fault)) + "more" + sgl.gen("y")
    assert s["before"] == "fine"
    boom(fault)
    return s["y"]


@sgl.function
def at_a_select(s, fault):
    s += fault + sgl.select("x", ["a", "b"], timeout=limit(fault))
    boom(fault)
    return s["x"]


@sgl.function
def in_a_fork(s, fault):
    s += "start "
    g = s.fork(3)
    g += ["one" + sgl.gen("x"), fault + sgl.gen("x", timeout=limit(fault)), "two" + sgl.gen("x")]
    assert (g[0]["x"], g[2]["x"]) == ("start one", "start two")  # siblings finish
    boom(fault)
    g.join()


@sgl.function
def in_a_fork_nobody_reads(s, fault):
    [child] = s.fork(1)
    child += fault + sgl.gen("x", timeout=limit(fault))
    boom(fault)


@sgl.function
async def in_an_async_program(s, fault):
    g = s.fork(2)
    g += ["one" + sgl.gen("x"), fault + sgl.gen("x", timeout=limit(fault))]
    assert await g[0]["x"] == "one"
    boom(fault)
    await g.join()


@sgl.function
def in_a_nested_program(s, fault):
    s += "outer "
    at_the_first_call(s, fault)


def limit(fault):
    return 0.15 if fault == "hang" else None


def boom(fault):
    if fault == "boom":
        raise Boom("mine")


PLACES = [
    at_the_first_call,
    at_a_later_call,
    at_a_select,
    in_a_fork,
    in_a_fork_nobody_reads,
    in_an_async_program,
    in_a_nested_program,
]


# ---- how it is run ----


def run(program, fault, backend):
    program.run(fault, backend=backend)


def run_in_one_thread(program, fault, backend):
    program.run(fault, backend=backend, use_thread=False)


def stream(program, fault, backend):
    program.run(fault, backend=backend, stream=True).sync()


def stream_read(program, fault, backend):
    list(program.run(fault, backend=backend, stream=True).text_iter())


def arun(program, fault, backend):
    on_loop(program.arun(fault, backend=backend))


def arun_stream(program, fault, backend):
    async def main():
        state = await program.arun(fault, backend=backend, stream=True)
        async for _ in state:
            pass

    on_loop(main())


def run_batch(program, fault, backend):
    results = program.run_batch(
        [("fine",), (fault,), ("fine",)], backend=backend, return_exceptions=True
    )
    assert isinstance(results[0], sgl.ProgramState)  # the other items finish
    assert isinstance(results[2], sgl.ProgramState)
    raise results[1]


def on_loop(work):
    async def main():
        try:
            return await work
        finally:
            end = time.monotonic() + SOON  # a reader may hear of the end before the run has ended
            while asyncio.all_tasks() != {asyncio.current_task()}:
                assert time.monotonic() < end, asyncio.all_tasks()
                await asyncio.sleep(0.001)

    return asyncio.run(main())


WAYS = [run, run_in_one_thread, stream, stream_read, arun, arun_stream, run_batch]
FAULTS = ["500", "400", "drop", "half", "hang", "boom"]


def can_happen(program, way, fault):
    if fault == "half":  # only a stream can break off
        return way in (stream, stream_read, arun_stream) and program is not at_a_select
    # Without threads the siblings of a call that hangs have to wait for it.
    return (fault, way, program) != ("hang", run_in_one_thread, in_a_fork)


CASES = [
    pytest.param(program, way, fault, id=f"{program.__name__}-{way.__name__}-{fault}")
    for program in PLACES
    for way in WAYS
    for fault in FAULTS
    if can_happen(program, way, fault)
]


@pytest.mark.parametrize(("program", "way", "fault"), CASES)
def test_the_original_error_arrives_in_time(backend, program, way, fault):
    began = time.monotonic()
    with pytest.raises((sgl.LangError, Boom)) as caught:
        way(program, fault, backend)
    assert time.monotonic() - began < SOON
    assert matches(fault, caught.value), repr(caught.value)


def test_a_hanging_call_over_http_closes_its_connection(server, closing):
    endpoint = closing(sgl.RuntimeEndpoint(server.url))
    with pytest.raises(sgl.DeadlineExceeded):
        at_the_first_call.run("hang", backend=endpoint)
    assert server.gone.acquire(timeout=SOON)


def test_a_batch_without_errors_kept_ends_the_others(server, closing):
    endpoint = closing(sgl.RuntimeEndpoint(server.url))

    @sgl.function
    def program(s, word):
        s += word + sgl.gen("x")

    began = time.monotonic()
    with pytest.raises(sgl.BackendError, match="fault 500"):
        program.run_batch([("hang",), ("500",), ("hang",)], backend=endpoint)
    assert time.monotonic() - began < SOON


@pytest.mark.parametrize("stream", [False, True])
def test_transient_faults_of_a_server_are_overcome(server, closing, stream):
    endpoint = closing(sgl.RuntimeEndpoint(server.url))

    @sgl.function
    def program(s):
        s += "fine" + sgl.gen("x")

    server.drop = True
    threading.Timer(0.3, lambda: setattr(server, "drop", False)).start()
    assert program.run(backend=endpoint, stream=stream, retries=6)["x"] == "fine"


@sgl.function
def endless(s):
    s += "the quick" + sgl.gen("x", max_tokens=4000, ignore_eos=True)
    return s["x"]


@sgl.function
def endless_fork(s):
    g = s.fork(2)
    g += "the quick" + sgl.gen("x", max_tokens=4000, ignore_eos=True)
    g.join()


def killed_while_running(backend, kill):
    """Runs of every kind are under way when kill() is called; their errors."""
    ways = [
        lambda: endless.run(backend=backend),
        lambda: endless_fork.run(backend=backend),
        lambda: endless.run(backend=backend, stream=True).sync(),
        lambda: asyncio.run(endless.arun(backend=backend)),
        lambda: endless.run_batch([{}] * 2, backend=backend),
        lambda: endless.run(backend=backend, timeout=300),
    ]
    errors = [None] * len(ways)

    def work(i):
        try:
            ways[i]()
        except BaseException as error:
            errors[i] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(ways))]
    for thread in threads:
        thread.start()
    while sgl.get_server_info(backend)["running"] < len(ways):
        time.sleep(0.05)
    kill()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return errors


def test_a_killed_server_fails_everything_under_way(tiny_folder, tmp_path, closing):
    from tests.e2e.test_serve import Server

    server = Server(tiny_folder, tmp_path / "log")
    try:
        endpoint = closing(sgl.RuntimeEndpoint(server.wait_ready().url))
        errors = killed_while_running(endpoint, server.process.kill)
    finally:
        server.stop()
    for error in errors:
        assert isinstance(error, sgl.BackendError), repr(error)
        assert error.status in (0, 500, 502, 503)


def test_a_killed_engine_fails_everything_under_way(tiny_folder):
    from radixserve.engine import Engine
    from radixserve.errors import EngineDead

    settings = {"dtype": "float32", "threads": 1, "kv_tokens": 32768}
    with Engine(str(tiny_folder), **settings) as engine:
        child = engine._launched.gateway.info.pid
        errors = killed_while_running(engine, lambda: os.kill(child, signal.SIGKILL))
        for error in errors:
            assert isinstance(error, EngineDead), repr(error)
        with pytest.raises(EngineDead):
            endless.run(backend=engine)
