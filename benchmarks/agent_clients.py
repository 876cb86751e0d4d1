"""The programs of agents.py against a served model, on the real clock.

Owns: a server for each side, and one task for each program. Must not know: how times are compared.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import httpx

from benchmarks.agents import Arrival, Ids, Turn
from benchmarks.serving.launch import served


class Clients:
    """What the programs of one run ask and how long they took.

    seconds: of each program, its pauses left out, by name. wait: the longest call. computed: prompt
    tokens that the server computed for them.
    """

    def __init__(self, url: str) -> None:
        self.seconds: dict[str, float] = {}
        self.wait = 0.0
        self.computed = 0
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
        self._http = httpx.AsyncClient(base_url=url, timeout=3600, limits=limits)

    async def run(self, programs: Sequence[Arrival]) -> None:
        began = time.monotonic()
        async with self._http:
            await asyncio.gather(*(self._program(arrival, began) for arrival in programs))

    async def _program(self, arrival: Arrival, began: float) -> None:
        await asyncio.sleep(max(0.0, began + arrival.at - time.monotonic()))
        started, pauses, parent = time.monotonic(), 0.0, ""
        turn, number = next(arrival.agent), 0
        while True:
            await asyncio.sleep(turn.pause)
            pauses += turn.pause
            names = turn.names(number)
            outputs = await self._turn(arrival, turn, names, parent)
            parent, number = names[-1], number + 1
            try:
                turn = arrival.agent.send(outputs)
            except StopIteration:
                break
        self.seconds[arrival.name] = time.monotonic() - started - pauses

    async def _turn(self, arrival: Arrival, turn: Turn, names: list[str], parent: str) -> list[Ids]:
        return await asyncio.gather(
            *(
                self._call(arrival, prompt, tokens, name, parent, len(names))
                for name, (prompt, tokens) in zip(names, turn.asks)
            )
        )

    async def _call(
        self, arrival: Arrival, prompt: Ids, tokens: int, name: str, parent: str, siblings: int
    ) -> Ids:
        body = {
            "input_ids": prompt,
            "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0},
        }
        if arrival.kind != "single":
            place = {"call": name, "parent": parent, "siblings": siblings}
            body["program"] = {"id": arrival.name, **place}
        began = time.monotonic()
        reply = (await self._http.post("/generate", json=body)).raise_for_status().json()
        self.wait = max(self.wait, time.monotonic() - began)
        meta = reply["meta_info"]
        self.computed += meta["prompt_tokens"] - meta["cached_tokens"]
        return list(reply["output_ids"])


def run_served(model: str, pool: int, flags: Sequence[str], programs: Sequence[Arrival]) -> Clients:
    """`programs` against a new server with these flags; a call of its own warms it up."""
    with served(model, pool, *flags) as url:
        warm = {"input_ids": [5] * 64, "sampling_params": {"max_new_tokens": 4}}
        httpx.post(f"{url}/generate", json=warm, timeout=600).raise_for_status()
        clients = Clients(url)
        asyncio.run(clients.run(programs))
    return clients
