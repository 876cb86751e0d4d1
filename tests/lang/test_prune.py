"""cancel() of a forked state ends that branch alone: trees are pruned, races have losers."""

import asyncio
import threading
import time

import pytest

import radixserve.lang as sgl


class Slow(sgl.Mock):
    """Calls with "slow" in the prompt answer only when they are aborted."""

    def __init__(self):
        super().__init__(lambda prompt: prompt[-1])
        self.entered = threading.Semaphore(0)
        self.over = threading.Event()

    def generate(self, body):
        if "slow" in "".join(part.get("text", "") for part in body["input"]):
            self.entered.release()
            assert self.over.wait(20), "nobody aborted it"
            raise sgl.BackendError(499, "cancelled", "aborted")
        return super().generate(body)

    async def agenerate(self, body):
        if "slow" not in "".join(part.get("text", "") for part in body["input"]):
            return await super().agenerate(body)
        self.entered.release()
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            self.abort(body["rid"])
            raise
        raise AssertionError("nobody aborted it")

    def abort(self, rid):
        super().abort(rid)
        self.over.set()


@sgl.function
def race(s, mock):
    fast, slow = s.fork(2)
    slow += "slow" + sgl.gen("x") + sgl.gen("y")
    grown = slow.fork(2)
    grown += sgl.gen("z")
    mock.entered.acquire(timeout=20)
    fast += "quick" + sgl.gen("x")
    s["winner"] = fast["x"]
    slow.cancel()
    for lost in (slow, *grown):
        with pytest.raises(sgl.ProgramCancelled, match="branch"):
            lost["y"]
    s += "on" + sgl.gen("x")
    return s["x"]


WAYS = {
    "run": lambda mock: race.run(mock, backend=mock),
    "with a deadline": lambda mock: race.run(mock, backend=mock, timeout=60, retries=2),
    "arun": lambda mock: asyncio.run(race.arun(mock, backend=mock)),
    "batch": lambda mock: race.run_batch([(mock,)], backend=mock)[0],
}


@pytest.mark.parametrize("way", WAYS)
def test_the_call_of_a_cancelled_branch_is_aborted_and_the_run_goes_on(way):
    mock = Slow()
    state = WAYS[way](mock)
    assert (state["winner"], state.ret_value) == ("k", "n")
    assert len(mock.aborted) == 1
    assert mock.prompts == ["quick", "on"]


def test_an_async_program_prunes_as_well():
    @sgl.function
    async def program(s, mock):
        fast, slow = s.fork(2)
        slow += "slow" + sgl.gen("x")
        fast += "quick" + sgl.gen("x")
        won = await fast["x"]
        while not mock.entered.acquire(blocking=False):
            await asyncio.sleep(0.001)
        slow.cancel()
        assert isinstance(await slow.error(), sgl.ProgramCancelled)
        return won

    mock = Slow()
    assert asyncio.run(program.arun(mock, backend=mock)).ret_value == "k"
    assert len(mock.aborted) == 1


def test_what_a_cancelled_branch_has_is_kept_and_join_leaves_the_rest_out():
    @sgl.function
    def program(s):
        forks = s.fork(3)
        forks += lambda i: f"{i}" + sgl.gen("x")
        assert [fork["x"] for fork in forks] == ["0", "1", "2"]
        forks[1].cancel()
        forks += "!" + sgl.gen("y")
        with pytest.raises(sgl.ProgramCancelled):
            forks[1]["y"]
        assert forks[1]["x"] == "1"
        forks.join()
        return s["x"], s["y"]

    state = program.run(backend=sgl.Mock(lambda prompt: prompt[-1]))
    assert state.ret_value == (["0", "1", "2"], ["!", None, "!"])
    assert len(state.explain().calls) == 5


def test_an_error_beside_a_cancelled_branch_is_raised_by_join():
    def script(prompt):
        if prompt == "1":
            raise sgl.BackendError(400, "bad", "no")
        return "x"

    @sgl.function
    def program(s):
        forks = s.fork(2)
        forks += lambda i: f"{i}" + sgl.gen("x")
        forks[0].cancel()
        forks.join()

    with pytest.raises(sgl.BackendError, match="no"):
        program.run(backend=sgl.Mock(script))


def test_a_branch_that_has_not_begun_makes_no_call():
    @sgl.function
    async def program(s, mock):
        s += "first" + sgl.gen("x")
        dropped, kept = s.fork(2)
        dropped += sgl.gen("y")
        dropped.cancel()
        kept += "!" + sgl.gen("y")
        assert isinstance(await dropped.error(), sgl.ProgramCancelled)
        return await kept["y"]

    mock = sgl.Mock(lambda prompt: prompt[-1])
    assert asyncio.run(program.arun(mock, backend=mock)).ret_value == "!"
    assert mock.prompts == ["first", "firstt!"]


class Late(sgl.Mock):
    """Knows a call only once it has been on its way for a while, as a server does."""

    def __init__(self):
        super().__init__(lambda prompt: "x")
        self.known = {}
        self.entered = threading.Semaphore(0)
        self.left = threading.Semaphore(0)

    def generate(self, body):
        self.entered.release()
        time.sleep(0.05)
        over = self.known[body["rid"]] = threading.Event()
        assert over.wait(9), "nobody aborted it"
        self.left.release()
        raise sgl.BackendError(499, "cancelled", "aborted")

    def stream(self, body):
        yield self.generate(body)

    def abort(self, rid):
        if rid in self.known:
            self.known[rid].set()


@sgl.function
def plain(s, word):
    s += word + sgl.gen("x")


def test_a_call_that_was_on_its_way_when_its_branch_was_cancelled_is_aborted():
    @sgl.function
    def program(s, mock):
        [child] = s.fork(1)
        child += "q" + sgl.gen("x")
        mock.entered.acquire()
        child.cancel()
        assert mock.left.acquire(timeout=8)

    mock = Late()
    program.run(mock, backend=mock)


def test_a_call_that_was_on_its_way_when_its_run_was_cancelled_is_aborted():
    mock = Late()
    state = plain.run("q", backend=mock, stream=True)
    mock.entered.acquire()
    state.cancel()
    assert mock.left.acquire(timeout=8)
