"""Many clients at once, some of which leave, abort, err or mean harm: does the server hold?

    python -m benchmarks.storm --model smollm2 --seconds 120 --streams 300

Starts a server, keeps `streams` calls open for so long, and then checks that every stream had an
end, that nothing was answered with 500, that no page is lost, that /metrics is the sum of the
usages that clients were told, and that memory does not grow. Exits with 1 where something of it
failed.

Owns: the mix of calls and what must hold. Must not know: radixserve's inside; it speaks HTTP.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import pathlib
import random
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

from benchmarks.storm_client import Call, Gone, Talk

KEYS = {"told": {"key": "t"}, "untold": {"key": "u"}, "root": {"key": "r", "admin": True}}
# Statuses that a call of each kind may have; 429 and 503 are a server that protects itself.
BAD_STATUSES = {400, 404, 405, 408, 413, 415}
TEXT = "the quick brown fox jumps over a lazy dog while seven wizards mix strong potions"


@dataclass
class Report:
    """calls, ends: how many, by kind and by kind and end. wrong: what must not be."""

    calls: collections.Counter[str] = field(default_factory=collections.Counter)
    ends: collections.Counter[str] = field(default_factory=collections.Counter)
    wrong: list[str] = field(default_factory=list)
    told: collections.Counter[str] = field(default_factory=collections.Counter)
    health: list[float] = field(default_factory=list)
    rss: list[tuple[float, int]] = field(default_factory=list)

    def tell(self, usage: dict[str, Any] | None) -> None:
        """Add a usage that a client was told."""
        if usage is None:
            self.wrong.append("a whole reply without usage")
            return
        details = usage.get("prompt_tokens_details") or {}
        self.told["prompt"] += usage["prompt_tokens"]
        self.told["generation"] += usage["completion_tokens"]
        self.told["cached"] += details.get("cached_tokens", usage.get("cached_tokens", 0))


class Storm:
    """The clients. seed: of the mix. kinds: of calls, and how often each is made. call_seconds:
    a call that takes longer hangs."""

    def __init__(self, talk: Talk, tokens: int, seed: int, call_seconds: float = 120.0) -> None:
        self._talk = talk
        self._call_seconds = call_seconds
        self._tokens = tokens
        self._random = random.Random(seed)
        self._count = 0
        self.report = Report()
        self.kinds: dict[Callable[[], Awaitable[str]], int] = {
            self._stream: 60, self._whole: 20, self._leave: 9, self._abort: 6, self._bad: 4,
            self._poison: 1,
        }  # fmt: skip

    async def client(self, is_over: Callable[[], bool]) -> None:
        """One call after the other."""
        while not is_over():
            kind = self._random.choices(list(self.kinds), list(self.kinds.values()))[0]
            name = getattr(kind, "__name__", "").strip("_")
            self.report.calls[name] += 1
            try:
                async with asyncio.timeout(self._call_seconds):
                    end = await kind()
            except TimeoutError:
                end = "HANGS"
                self.report.wrong.append(f"{name} did not end within {self._call_seconds:g} s")
            except Gone as gone:
                end = "broken off"
                self.report.wrong.append(f"{name}: {gone}")
            self.report.ends[f"{name}: {end}"] += 1

    # ---- kinds of calls ----

    async def _stream(self) -> str:
        """A stream read to its end; its usage is told."""
        body = self._body() | {"stream": True, "stream_options": {"include_usage": True}}
        async with self._talk.post("/v1/completions", body, "t") as call:
            if call.status != 200:
                return self._refused(call, await call.json())
            events = [event async for event in call.events()]
        if events[-1] != "[DONE]":
            self.report.wrong.append(f"a stream ended with {events[-1][:200]}")
            return "no end"
        self.report.tell(json.loads(events[-2])["usage"])
        return "whole"

    async def _whole(self) -> str:
        chat = self._random.random() < 0.5
        if chat:
            path, said = "/v1/chat/completions", self._prompt()
            body = {"messages": [{"role": "user", "content": said}], "max_tokens": self._tokens}
        else:
            path, body = "/v1/completions", self._body() | {"n": 2}
        async with self._talk.post(path, body, "t") as call:
            reply = await call.json()
        if call.status != 200:
            return self._refused(call, reply)
        self.report.tell(reply["usage"])
        return "whole"

    async def _leave(self) -> str:
        """The client closes its connection amid the stream, or before its answer."""
        path, body = "/v1/completions", self._body() | {"stream": self._random.random() < 0.7}
        async with self._talk.post(path, body | {"max_tokens": 500}, "u", wait=False) as call:
            if body["stream"] and await call.head() == 200:
                left = self._random.randrange(1, 10)
                async for _ in call.events():
                    left -= 1
                    if not left:
                        break
            else:
                await asyncio.sleep(self._random.random() / 5)
        return "left"

    async def _abort(self) -> str:
        """Another call ends it by its rid; native replies tell the counts all the same."""
        self._count += 1
        rid = f"storm-{self._count}"
        params = {"max_new_tokens": 500, "ignore_eos": True}
        body = {"text": self._prompt(), "rid": rid, "stream": True, "sampling_params": params}
        last = ""
        async with self._talk.post("/generate", body, "t") as call:
            if call.status != 200:
                return self._refused(call, await call.json())
            async for event in call.events():
                if not last:
                    async with self._talk.post("/abort_request", {"rid": rid}, "t") as abort:
                        await abort.json()
                last = event if event != "[DONE]" else last
        meta = json.loads(last)["meta_info"]
        self.report.tell(meta)
        return str(meta["finish_reason"]["type"])

    async def _bad(self) -> str:
        path, body = self._random.choice(
            [
                ("/v1/completions", {"prompt": []}),
                ("/v1/completions", {"prompt": "x", "temperature": -1}),
                ("/v1/completions", b'{"prompt": "x", x}'),
                ("/v1/chat/completions", {"messages": [{"role": "nobody", "content": "x"}]}),
                ("/v1/chat/completions", b'{"messages":[{"role":"user","content":"\\ud83d"}]}'),
                ("/generate", {"input_ids": [-1]}),
                ("/generate", {"text": "x", "sampling_params": {"top_p": 7}}),
                ("/nowhere", {}),
            ]
        )
        async with self._talk.post(path, body, "u") as call:
            return self._expected(call, await call.json(), BAD_STATUSES)

    async def _poison(self) -> str:
        path, body, statuses = self._random.choice(
            [
                ("/v1/completions", {"prompt": "word " * 600_000}, BAD_STATUSES),
                ("/v1/completions", b"[" * 100_000, BAD_STATUSES),
                ("/generate", {"input_ids": [5] * 400_000}, BAD_STATUSES),
                ("/v1/completions", {"prompt": "x", "stop": ["y"] * 200_000}, BAD_STATUSES),
                ("/v1/completions", self._body() | {"timeout_s": 0.001}, {200, 504}),
            ]
        )
        async with self._talk.post(path, body, "u") as call:
            return self._expected(call, await call.json(), statuses)

    # ---- inside ----

    def _expected(self, call: Call, reply: Any, statuses: set[int]) -> str:
        if call.status in statuses:
            return str(call.status)
        return self._refused(call, reply)

    def _refused(self, call: Call, reply: Any) -> str:
        if call.status not in (429, 503) or set(reply) != {"error"}:
            self.report.wrong.append(f"{call.path}: {call.status} {str(reply)[:200]}")
        return str(call.status)

    def _prompt(self) -> str:
        return f"{TEXT[: self._random.randrange(9, len(TEXT))]} {self._random.randrange(50)}"

    def _body(self) -> dict[str, Any]:
        tokens = self._random.randrange(1, self._tokens + 1)
        return {"prompt": self._prompt(), "max_tokens": tokens, "ignore_eos": True}


async def watch(talk: Talk, server: psutil.Process, report: Report) -> None:
    """Once a second: how long /health takes, how much memory front and engine have."""
    while True:
        began = time.monotonic()
        async with talk.get("/health") as call:
            await call.json()
        report.health.append(time.monotonic() - began)
        if call.status != 200:
            report.wrong.append(f"/health: {call.status}")
        family = [server, *server.children(recursive=True)]
        report.rss.append((time.monotonic(), sum(each.memory_info().rss for each in family)))
        await asyncio.sleep(1)


async def check_after(talk: Talk, report: Report) -> int:
    """What must hold once all clients have gone. Returns the tokens of the KV pool whose pages are
    neither free nor in the tree."""
    for _ in range(100):
        async with talk.get("/server_info", "r") as call:
            info = await call.json()
        if info["running"] == info["waiting"] == info["locked_tokens"] == 0:
            break
        await asyncio.sleep(0.1)
    if info["locked_tokens"] or info["running"] or info["waiting"]:
        report.wrong.append(f"still there: {info['running']}, {info['waiting']} waiting")
    lost = int(info["kv_tokens"] - info["free_tokens"] - info["evictable_tokens"])
    if lost:
        report.wrong.append(f"pages of {lost} tokens are lost")
    async with talk.get("/metrics") as call:
        seen = metrics(await call.text())
    for name, told in (("prompt", "prompt"), ("cached", "cached"), ("generation", "generation")):
        counted = seen[f'{name}_tokens_total{{key="told"}}']
        if counted != report.told[told]:
            report.wrong.append(f"{name}: counted {counted:.0f}, told {report.told[told]}")
    made = sum(v for k, v in seen.items() if k.startswith("generation_tokens_total"))
    if made != info["generated_tokens"]:
        report.wrong.append(
            f"counted {made:.0f} tokens, the engine made {info['generated_tokens']}"
        )
    if seen["requests_in_flight"]:
        report.wrong.append(f"in flight: {seen['requests_in_flight']:.0f}")
    return lost


def metrics(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    pairs = [line.rpartition(" ") for line in lines]
    return {name.removeprefix("radixserve_"): float(value) for name, _, value in pairs}


def growth(rss: Sequence[int]) -> float:
    """MiB by which memory grew over the last half, between the means of its two parts."""
    half = rss[len(rss) // 2 :]
    middle = len(half) // 2
    if not middle:
        return 0.0
    early, late = half[:middle], half[middle:]
    return (sum(late) / len(late) - sum(early) / len(early)) / 2**20


async def run(port: int, pid: int, arguments: argparse.Namespace) -> Report:
    talk = Talk("127.0.0.1", port)
    storm = Storm(talk, arguments.tokens, arguments.seed)
    watching = asyncio.create_task(watch(talk, psutil.Process(pid), storm.report))
    until = time.monotonic() + arguments.seconds

    def is_over() -> bool:
        return bool(time.monotonic() >= until)

    await asyncio.gather(*(storm.client(is_over) for _ in range(arguments.streams)))
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await check_after(talk, storm.report)
    grown = growth([size for _, size in storm.report.rss])
    if grown > arguments.growth:
        storm.report.wrong.append(f"memory grew by {grown:.0f} MiB over the last half")
    return storm.report


def show(report: Report) -> None:
    for name, count in sorted(report.ends.items()):
        print(f"{count:7} {name}")
    print(f"{sum(report.calls.values()):7} calls in all")
    print(f"usages told: {dict(report.told)}")
    print(f"/health took {max(report.health):.2f} s at most")
    sizes = [size >> 20 for _, size in report.rss]
    grown = growth([size for _, size in report.rss])
    print(f"memory: {sizes[0]} MiB at first, {max(sizes)} at most, {grown:+.1f} over the last half")
    for each, count in collections.Counter(report.wrong).most_common(20):
        print(f"WRONG, {count} times: {each}")


def serve(arguments: argparse.Namespace, keys: pathlib.Path) -> tuple[subprocess.Popen[bytes], int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-m", "radixserve.cli", "serve", "--model", arguments.model]
    command += ["--port", str(port), "--kv-tokens", str(arguments.kv_tokens), "--no-access-log"]
    command += ["--dtype", arguments.dtype, *shlex.split(arguments.flags)]
    return subprocess.Popen([*command, "--api-key-file", str(keys)]), port


async def ready(port: int) -> None:
    while True:
        try:
            async with Talk("127.0.0.1", port).get("/ready") as call:
                await call.text()
            if call.status == 200:
                return
        except (OSError, Gone):
            pass
        await asyncio.sleep(0.2)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="auto", help="of the server's weights and KV pool")
    parser.add_argument("--flags", default="", help="more flags of the server, in one string")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--streams", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=32, help="longest output of a plain call")
    parser.add_argument("--kv-tokens", type=int, default=32768)
    parser.add_argument("--growth", type=float, default=24.0, help="MiB that memory may grow by")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    with tempfile.TemporaryDirectory() as folder:
        keys = pathlib.Path(folder) / "keys.json"
        keys.write_text(json.dumps({"keys": KEYS}))
        process, port = serve(arguments, keys)
        try:
            asyncio.run(ready(port))
            report = asyncio.run(run(port, process.pid, arguments))
            process.terminate()
            code = process.wait(120)
        finally:
            process.kill()
    if code:
        report.wrong.append(f"the server exited with {code}")
    show(report)
    sys.exit(1 if report.wrong else 0)


if __name__ == "__main__":
    main()
