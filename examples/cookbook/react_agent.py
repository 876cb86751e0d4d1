"""An agent that thinks, acts and looks: the tools run in the middle of the program.

The growing transcript is one state, so each step computes only what is new. select() keeps actions
to the tools there are.

    python examples/cookbook/react_agent.py [model]
"""

from __future__ import annotations

import sys

import radixserve as rs

FACTS = {"harbour": "The harbour was built in 1788.", "tower": "The tower is 142 steps high."}


def look_up(topic):
    return FACTS.get(topic, "Nothing is known about that.")


@rs.function
def agent(s, question, steps=3):
    s += "Answer with the help of a book that knows: harbour, tower.\n"
    s += f"Question: {question}\n"
    for step in range(1, steps + 1):
        s += f"Thought {step}:" + rs.gen("thought", max_tokens=24, stop="\n", temperature=0)
        s += f"\nAction {step}: " + rs.select("action", ["look up", "answer"])
        if s["action"] == "answer":
            break
        s += " the " + rs.select("topic", [*FACTS, "weather"])
        s += f"\nSeen {step}: {look_up(s['topic'])}\n"
    s += "\nAnswer:" + rs.gen("answer", max_tokens=24, stop="\n", temperature=0)
    return step


def main(backend):
    state = agent.run("How many steps has the tower?", backend=backend)
    print(state.text())
    print(f"\n({state.ret_value} steps)")
    print(state.explain())
    return state


if __name__ == "__main__":
    with rs.Engine(*sys.argv[1:2]) as engine:
        main(engine)
