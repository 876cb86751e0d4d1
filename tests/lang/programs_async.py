"""Async programs as people write them; they join the list of programs.py."""

import radixserve.lang as sgl
from tests.lang.programs import CASES, case

__all__ = ["CASES"]


@case(lambda s: s["x"] is not None and s.ret_value == len(s["x"]))
async def async_chain(s):
    s += "the quick" + sgl.gen("x")
    length = len(await s["x"])
    s += f" {length}" + sgl.gen("y")
    return length


@case(lambda s: len(s["x"]) == 3)
async def async_forks(s):
    s += "the quick"
    g = s.fork(3)
    g += lambda i: f" {i}" + sgl.gen("x")
    await g.join()
    s += "".join(await s["x"])


@case(lambda s: s["again"] in ("more", "done") and s.text().endswith(s["again"]))
async def async_loop(s):
    s += "count"
    for i in range(3):
        s += f" {i} " + sgl.select("again", ["more", "done"])
        if await s["again"] == "done":
            break
