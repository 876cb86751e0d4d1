"""Bytes that are no HTTP get the envelope of every other error.

Owns: that one answer. Must not know: calls; there is none.
"""

from __future__ import annotations

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from radixserve.api.faults import envelope
from radixserve.errors import InvalidRequest


class Protocol(H11Protocol):
    """HTTP/1.1 as uvicorn speaks it."""

    def send_400_response(self, msg: str) -> None:
        """What was sent cannot be read, or its head is too long."""
        status, body = envelope(InvalidRequest(msg, code="invalid_http"))
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        for event in (
            h11.Response(status_code=status, headers=headers, reason=b"Bad Request"),
            h11.Data(data=msgspec.json.encode(body)),
            h11.EndOfMessage(),
        ):
            piece = self.conn.send(event)
            if piece:
                self.transport.write(piece)
        self.transport.close()
