"""An agent that calls Python functions until it can answer.

The functions' signatures and docstrings are what the model is told, once, where the conversation
begins; what it writes always fits them. The first turn has to call, the last has to answer. The
conversation is one state, so each turn computes only what is new.

    python examples/cookbook/tools.py [model]
"""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import pydantic

import radixserve as rs

PEOPLE = {"Oslo": 700_000, "Rome": 2_800_000, "Tokyo": 14_000_000}
Count = Annotated[int, pydantic.Field(ge=0, le=100_000_000)]


def look_up(city: Literal["Oslo", "Rome", "Tokyo"]) -> int:
    """How many people live in a city."""
    return PEOPLE[city]


def add(left: Count, right: Count) -> int:
    """The sum of two numbers."""
    return left + right


@rs.function
def agent(s, question, turns=4):
    s += rs.tools([look_up, add])
    s += rs.system("Look numbers up, then answer in one sentence.") + rs.user(question)
    for turn in range(turns):
        choice = "required" if turn == 0 else "auto" if turn + 1 < turns else "none"
        s += rs.assistant(
            rs.gen(
                "step",
                tool_choice=choice,
                parallel_tool_calls=False,
                max_tokens=100,
                temperature=0,
            )
        )
        if not s["step"].calls:
            break
        for call in s["step"].calls:
            s += rs.tool(call, call.run())
    return str(s["step"])


def main(backend):
    state = agent.run("How many people live in Rome and Oslo together?", backend=backend)
    print(state.text())
    print(state.explain())
    return state


if __name__ == "__main__":
    with rs.Engine(*sys.argv[1:2]) as engine:
        main(engine)
