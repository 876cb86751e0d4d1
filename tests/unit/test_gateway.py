"""The gateway's frames, over a channel that only keeps them."""

from __future__ import annotations

import asyncio

import pytest

from radixserve.chunks import Request
from radixserve.config.schema import Config
from radixserve.gateway import Gateway
from radixserve.wire import codec
from radixserve.wire.messages import Abort, Finished, FinishReason, Generate, Ready, TokenOut
from radixserve.wire.params import SamplingParams
from tests.api.scripted import make_renderer


class Kept:
    """frames: what was sent down, decoded."""

    def __init__(self) -> None:
        self.frames: list[list] = []
        self.up: asyncio.Queue[bytes] = asyncio.Queue()
        self.is_closed = False

    def send(self, frame: bytes) -> None:
        assert not self.is_closed
        self.frames.append(codec.decode_to_engine(frame))

    async def receive(self) -> bytes:
        return await self.up.get()

    def close(self) -> None:
        self.is_closed = True


class Alive:
    def alive(self) -> bool:
        return True

    def working(self) -> bool:
        return True


@pytest.fixture(scope="module")
def renderer(tmp_path_factory):
    return make_renderer(tmp_path_factory.mktemp("tokenizer"))


def asked(token: int, **fields) -> Request:
    prompt = token.to_bytes(4, "little")
    return Request(prompt=prompt, params=SamplingParams(max_new_tokens=3), **fields)


async def whole(gateway: Gateway, request: Request) -> list[int]:
    return [token async for chunk in gateway.submit(request) for token in chunk.ids]


def test_requests_of_one_moment_are_one_frame(renderer) -> None:
    async def run() -> None:
        channel = Kept()
        gateway = Gateway(Config(), channel, renderer, Ready(vocab_size=300), Alive())
        requests = [asked(1), asked(2, is_whole=True, follows=2), asked(3)]
        tasks = [asyncio.create_task(whole(gateway, request)) for request in requests]
        await asyncio.sleep(0.01)
        (frame,) = channel.frames
        assert [(m.prompt[0], m.whole, m.follows) for m in frame if isinstance(m, Generate)] == [
            (1, False, 0),
            (2, True, 2),
            (3, False, 0),
        ]
        rid = frame[1].rid
        ended = Finished(rid=rid, reason=FinishReason.LENGTH, completion_tokens=3)
        channel.up.put_nowait(codec.encode([TokenOut(rid, [7, 8, 9], seconds=0.5), ended]))
        assert await tasks[1] == [7, 8, 9]
        tasks[0].cancel()
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.01)
        aborts = [message for sent in channel.frames[1:] for message in sent]
        assert aborts == [Abort(frame[0].rid), Abort(frame[2].rid)]
        await gateway.close(0.01)
        assert channel.is_closed

    asyncio.run(run())


def test_what_was_said_before_the_end_is_sent(renderer) -> None:
    async def run() -> None:
        channel = Kept()
        gateway = Gateway(Config(), channel, renderer, Ready(vocab_size=300), Alive())
        gateway.end_program("p", "")
        gateway.give_up("over")
        await gateway.close(0.01)
        assert [type(message).__name__ for sent in channel.frames for message in sent] == [
            "ProgramEnd"
        ]

    asyncio.run(run())
