"""Which of many calls are sent first, over real sockets."""

import asyncio
import functools
import gc
import json
import weakref

from radixserve.lang.backends.transport import SENDING, Transport

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


class Peer:
    """A server in the loop of its callers. seen: "open" for each connection and "body" for each
    request, as they came. Requests to /deaf are not read, and told in `deaf`."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.deaf: list[str] = []
        self.may_answer = asyncio.Event()

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return f"http://{host}:{port}"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.seen.append("open")
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                if b"/deaf" in head:
                    self.deaf.append("open")
                    await self.may_answer.wait()
                    return
                size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                json.loads(await reader.readexactly(size))
                self.seen.append("body")
                await self.may_answer.wait()
                writer.write(HEAD)
        except (asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the caller has gone, or the test is over
        finally:
            writer.close()


def in_a_loop(test):
    """A test that is a coroutine, on a loop of its own."""

    @functools.wraps(test)
    def whole():
        asyncio.run(test())

    return whole


@in_a_loop
async def test_of_many_calls_the_first_are_sent_before_the_last_connect():
    peer = Peer()
    async with peer as url:
        transport = Transport(url, {}, 60)
        calls = [asyncio.create_task(transport.aask("POST", "/", {"n": n})) for n in range(64)]
        async with asyncio.timeout(60):
            while peer.seen.count("body") < 64:  # though none is answered
                await asyncio.sleep(0.001)
        assert peer.seen.index("body") < 64 - SENDING
        peer.may_answer.set()
        assert await asyncio.gather(*calls) == [{}] * 64
        await transport.aclose()


@in_a_loop
async def test_calls_that_cannot_be_sent_hold_up_no_other():
    peer = Peer()
    async with peer as url:
        transport = Transport(url, {}, 60)
        long = "x" * 40_000_000  # more than sockets hold
        deaf = [asyncio.create_task(transport.aask("POST", "/deaf", long)) for _ in range(SENDING)]
        async with asyncio.timeout(60):
            while len(peer.deaf) < SENDING:
                await asyncio.sleep(0.001)
            call = asyncio.create_task(transport.aask("POST", "/", {}))
            while "body" not in peer.seen:
                await asyncio.sleep(0.001)
        assert not any(task.done() for task in deaf)
        for task in deaf:
            task.cancel()
        await asyncio.gather(*deaf, return_exceptions=True)
        peer.may_answer.set()
        assert await call == {}
        # Their turns were given back, and those of calls that fail are, too.
        async with asyncio.timeout(60):
            for _ in range(2 * SENDING):
                assert await transport.aask("POST", "/", {}) == {}
        await transport.aclose()


def test_a_loop_that_has_ended_is_forgotten():
    loops = []

    async def ask(transport: Transport) -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        calls = (transport.aask("POST", "/", {}) for _ in range(3 * SENDING))
        assert all(error.code == "connection_error" for error in await settled(calls))

    async def settled(calls):
        return await asyncio.gather(*calls, return_exceptions=True)

    transport = Transport("http://127.0.0.1:9", {}, 60)
    asyncio.run(ask(transport))
    gc.collect()
    assert loops[0]() is None
    asyncio.run(ask(transport))
