"""How a branch asks: the wire form of its calls, and what is reported of each.

Owns: the place of a call in its run, its seed, what stands in its body. Must not know: states, what
a reply means, how a call is made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from radixserve.lang.calls import Call
from radixserve.lang.history import CallReport
from radixserve.lang.prompt import Part
from radixserve.lang.sampling import Sampling

CONSTRAINTS = ("json_schema", "json_object", "regex", "ebnf", "choice", "structural_tag")


@dataclass(slots=True)
class Place:
    """Where a branch stands in its run; numbers calls and forks in the order they happen.

    The root's calls are 0, 1, ..; a fork takes the next number f and its child i calls f.i.0,
    f.i.1, .. parent: the last call before. siblings: branches whose next call extends parent.
    """

    run: str
    prefix: str = ""
    count: int = 0
    parent: str = ""
    siblings: int = 1

    def next_call(self) -> dict[str, Any]:
        call = f"{self.prefix}{self.count}"
        ref = {"id": self.run, "call": call, "parent": self.parent, "siblings": self.siblings}
        self.count, self.parent, self.siblings = self.count + 1, call, 1
        return ref

    def fork(self, size: int) -> list[Place]:
        at = f"{self.prefix}{self.count}"
        self.count += 1
        siblings = self.siblings * size
        return [Place(self.run, f"{at}.{i}.", 0, self.parent, siblings) for i in range(size)]


@dataclass(frozen=True, slots=True)
class Settings:
    """What all branches of a run share. seed: of the run, from which every call's is derived."""

    defaults: Sampling
    streaming: bool = False
    seed: int | None = None


def body_of(
    place: Place, parts: list[Part], params: dict[str, Any], *, stream: bool = False
) -> dict[str, Any]:
    """The body of the next call. params: those of sampling."""
    program = place.next_call()
    return {
        "input": parts,
        "sampling_params": params,
        "rid": f"{program['id']}-{program['call']}",
        "stream": stream,
        "program": program,
    }


def add_seed(body: dict[str, Any], seed: int | None) -> None:
    """A seed for this call, from the run's and the place; the same in every run of it."""
    if seed is None or "sampling_seed" in body["sampling_params"]:
        return
    source = f"{seed}/{body['program']['call']}".encode()
    drawn = int.from_bytes(hashlib.blake2b(source, digest_size=8).digest(), "big")
    body["sampling_params"]["sampling_seed"] = drawn >> 1  # 63 bits


def report_of(call: Call) -> CallReport:
    """Of a call that is yet to be made."""
    program, params = call.body["program"], call.body["sampling_params"]
    constraint = next((each for each in CONSTRAINTS if each in params), None)
    if "tools" in call.body and constraint is None:
        constraint = "tools"
    return CallReport(
        call=program["call"],
        parent=program["parent"],
        kind=call.kind,
        name=call.name,
        constraint="choices" if call.kind == "choose" else constraint,
    )


def ask(call: Call, report: CallReport, reports: list[CallReport]) -> Generator[Call, Any, Any]:
    """Yield `call` and return the reply that is sent; `report` of it is the last of `reports`."""
    try:
        reply = yield call
    except BaseException as error:
        report.error = f"{type(error).__name__}: {error}"
        raise
    finally:
        report.started, report.seconds, report.tries = call.started, call.seconds, call.tries
        reports.append(report)
    report.take(reply)
    return reply
