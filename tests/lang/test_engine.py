"""EngineBackend on an object with submit and abort."""

import pytest

import radixserve.lang as sgl


class Link:
    """An engine that answers with a mock's replies. closed: iterators that were closed."""

    def __init__(self, replies):
        self.mock = sgl.Mock(replies)
        self.closed = 0

    def submit(self, body):
        try:
            if "choices" in body["input"][-1]:
                yield self.mock.choose(body)
            elif body["stream"]:
                yield from self.mock.stream(body)
            else:
                yield self.mock.generate(body)
        finally:
            self.closed += 1

    def abort(self, rid):
        self.mock.abort(rid)

    def flush_cache(self):
        self.mock.flush_cache()

    def get_server_info(self):
        return self.mock.get_server_info()


@sgl.function
def program(s):
    s += "q" + sgl.gen("x") + sgl.select("y", ["a", "b"]) + sgl.gen("z", n=2)


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_is_a_backend(stream):
    link = Link(["one", "a", "two"])
    state = program.run(backend=link, stream=stream)
    assert (state["x"], state["y"], state["z"]) == ("one", "a", ["two", "two"])
    assert link.closed == 3
    assert [call["stream"] for call in link.mock.calls] == [stream, False, False]
    assert sgl.get_server_info(link)["calls"] == 3


def test_the_engines_errors_pass_as_they_are():
    class Refused(Exception):
        pass

    class Refusing(Link):
        def submit(self, body):
            raise Refused("queue full")
            yield

    with pytest.raises(Refused, match="queue full"):
        program.run(backend=Refusing([]))


def test_the_reply_is_closed_when_it_breaks_off():
    class Breaking:
        is_closed = False

        def __iter__(self):
            return self

        def __next__(self):
            raise OSError("pipe")

        def close(self):
            self.is_closed = True

    reply = Breaking()
    link = Link([])
    link.submit = lambda body: reply
    with pytest.raises(OSError, match="pipe"):
        program.run(backend=link)
    assert reply.is_closed


def test_no_reply_at_all_is_an_error():
    class Silent(Link):
        def submit(self, body):
            return iter(())

    with pytest.raises(sgl.BackendError, match="no reply"):
        program.run(backend=Silent([]))
