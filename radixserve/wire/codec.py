"""Messages to bytes and back: msgpack, one list of messages per frame.

Owns: the encoding. A list per frame lets the engine send all of a step's messages at once. Must
not know: sockets.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from radixserve.wire.messages import FromEngine, ToEngine

_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(list[ToEngine])
_from_engine = msgspec.msgpack.Decoder(list[FromEngine])


def encode(messages: Sequence[ToEngine] | Sequence[FromEngine]) -> bytes:
    return _encoder.encode(messages)


def decode_to_engine(frame: bytes) -> list[ToEngine]:
    return _to_engine.decode(frame)


def decode_from_engine(frame: bytes) -> list[FromEngine]:
    return _from_engine.decode(frame)
