"""Deadlines, retries and bad arguments of calls, programs and batches."""

import asyncio
import threading
import time

import pytest

import radixserve.lang as sgl


class Stuck(sgl.Mock):
    """Calls with "stuck" in the prompt never answer, aborted or not, until the test ends."""

    def __init__(self):
        super().__init__(lambda prompt: "ok")
        self.over = threading.Event()

    def generate(self, body):
        if "stuck" in "".join(part.get("text", "") for part in body["input"]):
            self.calls.append(body)
            self.over.wait(30)
        return super().generate(body)

    def stream(self, body):
        yield self.generate(body)

    def choose(self, body):
        return self.generate(body)


@pytest.fixture
def stuck():
    mock = Stuck()
    yield mock
    mock.over.set()


@sgl.function
def once(s, word):
    s += word + sgl.gen("x")
    return s["x"]


@sgl.function
def per_call(s, word):
    s += word + sgl.gen("x", timeout=0.1)
    return s["x"]


@sgl.function
def per_select(s, word):
    s += word + sgl.select("x", ["a", "b"], timeout=0.1)
    return s["x"]


@sgl.function
def forked(s, word):
    g = s.fork(2)
    g += ["fine" + sgl.gen("x"), word + sgl.gen("x")]
    g.join()


@sgl.function
async def native(s, word):
    s += word + sgl.gen("x")
    return await s["x"]


def takes_less_than(seconds, work):
    began = time.monotonic()
    with pytest.raises(sgl.DeadlineExceeded) as caught:
        work()
    assert time.monotonic() - began < seconds
    return caught.value


ARUN = "arun"
WAYS = {
    "run": lambda program, mock, **kw: program.run("stuck", backend=mock, **kw),
    "stream": lambda program, mock, **kw: program.run(
        "stuck", backend=mock, stream=True, **kw
    ).sync(),
    "arun": lambda program, mock, **kw: asyncio.run(program.arun("stuck", backend=mock, **kw)),
    "run_batch": lambda program, mock, **kw: program.run_batch(
        [("stuck",)], backend=mock, **({"program_timeout": kw["timeout"]} if kw else {})
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", [once, forked, native])
def test_a_program_ends_at_its_deadline(stuck, way, program):
    error = takes_less_than(5, lambda: WAYS[way](program, stuck, timeout=0.1))
    assert "the program took longer than 0.1 s" in str(error)
    assert isinstance(error, TimeoutError)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", [per_call, per_select])
def test_a_call_ends_at_its_deadline(stuck, way, program):
    error = takes_less_than(5, lambda: WAYS[way](program, stuck))
    assert "call 0 took longer than 0.1 s" in str(error)


def test_a_call_in_time_is_not_disturbed(stuck):
    assert per_call.run("fine", backend=stuck)["x"] == "ok"
    assert once.run("fine", backend=stuck, timeout=30)["x"] == "ok"


def test_the_call_past_its_deadline_is_aborted(stuck):
    takes_less_than(5, lambda: per_call.run("stuck", backend=stuck))
    for _ in range(100):
        if stuck.aborted:
            break
        time.sleep(0.01)
    assert stuck.aborted == [stuck.calls[0]["rid"]]


def test_siblings_of_a_call_past_its_deadline_finish(stuck):
    @sgl.function
    def program(s):
        g = s.fork(2)
        g += ["fine" + sgl.gen("x"), "stuck" + sgl.gen("x", timeout=0.1)]
        assert g[0]["x"] == "ok"
        with pytest.raises(sgl.DeadlineExceeded):
            g[1]["x"]
        s += "after" + sgl.gen("y")

    assert program.run(backend=stuck)["y"] == "ok"


def test_a_batch_ends_at_its_deadline(stuck):
    items = [("fine",), ("stuck",), ("fine",)]
    error = takes_less_than(5, lambda: once.run_batch(items, backend=stuck, timeout=0.2))
    assert "the batch took longer than 0.2 s" in str(error)
    states = once.run_batch(items, backend=stuck, timeout=2.0, return_exceptions=True)
    assert [states[0]["x"], states[2]["x"]] == ["ok", "ok"]
    assert isinstance(states[1], sgl.DeadlineExceeded)


def test_a_function_that_computes_is_told_at_its_next_read(stuck):
    told = threading.Event()

    @sgl.function
    def program(s):
        s += "fine" + sgl.gen("x")
        threading.Event().wait(0.3)
        try:
            s += "more" + sgl.gen("y")
            s["y"]
        except sgl.LangError:
            told.set()
            raise

    takes_less_than(5, lambda: asyncio.run(program.arun(backend=stuck, timeout=0.1)))
    assert told.wait(5)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "1", True])
def test_a_deadline_is_a_time(timeout):
    for use in (
        lambda: sgl.gen("x", timeout=timeout),
        lambda: sgl.select("x", ["a"], timeout=timeout),
        lambda: once.run("a", backend=sgl.Mock(["A"]), timeout=timeout),
        lambda: once.run_batch([("a",)], backend=sgl.Mock(["A"]), timeout=timeout),
    ):
        with pytest.raises((ValueError, TypeError), match="timeout"):
            use()


class Flaky(sgl.Mock):
    """Fails `times` times with `error`, then answers."""

    def __init__(self, times, error):
        super().__init__(lambda prompt: "ok")
        self.left = times
        self.error = error
        self.rids = []

    def _fail(self, body):
        self.rids.append(body["rid"])
        if self.left:
            self.left -= 1
            raise self.error

    def generate(self, body):
        self._fail(body)
        return super().generate(body)

    def stream(self, body):
        self._fail(body)
        yield from super().stream(body)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr("radixserve.lang.calls.FIRST_PAUSE", 0.001)


class EngineError(Exception):
    """As an engine in this process raises it."""

    def __init__(self, status):
        self.status = status


TRANSIENT = [
    sgl.BackendError(0, "connection_error", "gone"),
    sgl.BackendError(429, "queue_full", "busy"),
    sgl.BackendError(500, "internal_error", "oops"),
    sgl.BackendError(503, "engine_dead", "starting", retry_after=0.002),
    EngineError(429),
]
LASTING = [
    sgl.BackendError(400, "invalid_request", "no"),
    sgl.BackendError(401, "unauthorised", "no"),
    sgl.BackendError(502, "malformed_reply", "no"),
    ValueError("no"),
    EngineError(400),
]
EACH_WAY = {
    "run": lambda mock, **kw: once.run("a", backend=mock, **kw),
    "stream": lambda mock, **kw: (lambda state: (state.sync(), state)[1])(
        once.run("a", backend=mock, stream=True, **kw)
    ),
    "arun": lambda mock, **kw: asyncio.run(once.arun("a", backend=mock, **kw)),
    "run_batch": lambda mock, **kw: once.run_batch([("a",)], backend=mock, **kw)[0],
}


@pytest.mark.parametrize("way", EACH_WAY)
@pytest.mark.parametrize("error", TRANSIENT, ids=repr)
def test_transient_errors_are_tried_again(way, error):
    mock = Flaky(2, error)
    state = EACH_WAY[way](mock, retries=2)
    assert state["x"] == "ok"
    assert [rid.partition("-try")[2] for rid in mock.rids] == ["", "2", "3"]
    assert state.explain().calls[0].tries == 3


@pytest.mark.parametrize("way", EACH_WAY)
@pytest.mark.parametrize("error", LASTING, ids=repr)
def test_other_errors_are_not(way, error):
    mock = Flaky(1, error)
    with pytest.raises(type(error)):
        EACH_WAY[way](mock, retries=5)
    assert len(mock.rids) == 1


def test_tries_are_counted_and_the_last_error_raises():
    mock = Flaky(9, sgl.BackendError(503, "busy", "later"))
    with pytest.raises(sgl.BackendError, match="later"):
        once.run("a", backend=mock, retries=2)
    assert len(mock.rids) == 3
    with pytest.raises(sgl.BackendError, match="later"):
        once.run("a", backend=mock)
    assert len(mock.rids) == 4
    with pytest.raises(ValueError, match="retries"):
        once.run("a", backend=mock, retries=-1)


def test_a_stream_that_has_begun_is_not_tried_again():
    class Torn(Flaky):
        def stream(self, body):
            self.rids.append(body["rid"])
            yield next(super(Flaky, self).stream(body))
            raise sgl.BackendError(0, "connection_error", "torn")

    mock = Torn(0, None)
    state = once.run("a", backend=mock, stream=True, retries=3)
    with pytest.raises(sgl.BackendError, match="torn"):
        list(state.text_iter("x"))
    assert len(mock.rids) == 1


def test_the_deadline_ends_the_tries():
    mock = Flaky(1000, sgl.BackendError(503, "busy", "later", retry_after=5.0))
    takes_less_than(4, lambda: once.run("a", backend=mock, retries=100, timeout=0.1))


def test_the_server_says_how_long_to_wait():
    mock = Flaky(1, sgl.BackendError(503, "busy", "later", retry_after=0.2))
    began = time.monotonic()
    once.run("a", backend=mock, retries=1)
    assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1.0),
        ("temperature", float("nan")),
        ("temperature", "hot"),
        ("top_p", 1.5),
        ("top_k", -2),
        ("top_k", 2.5),
        ("min_p", -0.1),
        ("frequency_penalty", 3),
        ("max_new_tokens", -1),
        ("n", 0),
        ("seed", -1),
        ("seed", 2**63),
        ("stop", [""]),
        ("stop", [3]),
        ("ignore_eos", 1),
    ],
)
def test_a_bad_default_raises_although_every_gen_replaces_it(name, value):
    mock = sgl.Mock(["A"])

    @sgl.function
    def program(s):
        s += "q" + sgl.gen(
            "x", 5, n=1, stop="a", temperature=1, top_p=1, top_k=1, min_p=0, frequency_penalty=0,
            ignore_eos=False, seed=3,
        )  # fmt: skip

    for use in (
        lambda: program.run(backend=mock, **{name: value}),
        lambda: program.run_batch([{}], backend=mock, **{name: value}),
        lambda: asyncio.run(program.arun(backend=mock, **{name: value})),
    ):
        with pytest.raises((ValueError, TypeError), match=name):
            use()
    assert mock.calls == []


def test_a_seed_of_the_run_gives_every_call_its_own():
    @sgl.function
    def program(s):
        g = s.fork(2)
        g += "q" + sgl.gen("x")
        g.join()
        s += sgl.gen("y") + sgl.gen("z", seed=5)

    def seeds(**options):
        mock = sgl.Mock(lambda prompt: "")
        program.run(backend=mock, **options)
        return {
            call["program"]["call"]: call["sampling_params"].get("sampling_seed")
            for call in mock.calls
        }

    first = seeds(seed=7)
    assert first == seeds(seed=7)
    assert len(set(first.values())) == 4
    assert all(0 <= seed < 2**63 for seed in first.values())
    assert set(first.values()) & set(seeds(seed=8).values()) == {5}
    assert list(seeds().values()).count(None) == 3


def test_logit_bias_goes_as_it_is():
    mock = sgl.Mock(["A"])
    sgl.function(lambda s: s.__iadd__(sgl.gen("x", logit_bias={3: -100}))).run(backend=mock)
    assert mock.calls[0]["sampling_params"]["logit_bias"] == {3: -100}
    for bad in ({3: 101}, {-1: 1}, {"a": 1}):
        with pytest.raises((ValueError, TypeError), match="logit_bias"):
            sgl.gen("x", logit_bias=bad)
