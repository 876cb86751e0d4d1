"""Several plans side by side, each followed further, and a vote on the ends.

The forks share everything above them; the levels of the tree need no bookkeeping but lists.

    python examples/cookbook/tree_of_thought.py [model]
"""

from __future__ import annotations

import sys

import radixserve as rs


@rs.function
def solve(s, problem, width=3):
    s += rs.system("You plan small events. Be brief.")
    s += rs.user(problem)
    plans = s.fork(width)
    for i, plan in enumerate(plans):
        plan += rs.user(f"Propose plan {i + 1}, different from the obvious.")
        plan += rs.assistant(rs.gen("plan", max_tokens=32, temperature=0.8))
        plan += rs.user("What could go wrong with it?")
        plan += rs.assistant(rs.gen("risk", max_tokens=32, temperature=0))
        plan += rs.user("From 1 to 5, how good is it?")
        plan += rs.assistant(rs.select("score", list("12345"), choices_method=rs.probability))
    plans.join()
    best = max(range(width), key=lambda i: int(s["score"][i]))
    s += rs.user(f"We take this plan: {s['plan'][best]} Mind that {s['risk'][best]} First step?")
    s += rs.assistant(rs.gen("step", max_tokens=32, temperature=0))
    return best


def main(backend):
    state = solve.run("A picnic for 20 in April.", backend=backend, seed=1)
    for i, (plan, score) in enumerate(zip(state["plan"], state["score"])):
        print(f"{'*' if i == state.ret_value else ' '} {score}  {plan.strip()}")
    print("first step:", state["step"].strip())
    return state


if __name__ == "__main__":
    with rs.Engine(*sys.argv[1:2]) as engine:
        main(engine)
