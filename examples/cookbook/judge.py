"""A judge with several measures: one prompt with the text, a fork for each measure.

python examples/cookbook/judge.py [model]
"""

from __future__ import annotations

import sys
from typing import Annotated

import pydantic

import radixserve as rs

MEASURES = ["clarity", "courtesy", "truth"]
LETTER = "Dear guests, the lighthouse is closed on Monday because of the wind. We are sorry!"
Score = Annotated[int, pydantic.Field(ge=1, le=9)]


@rs.function
def judge(s, text):
    s += rs.system("You grade letters.") + rs.user("The letter:\n" + text)
    forks = s.fork(len(MEASURES))
    for fork, measure in zip(forks, MEASURES):
        fork += rs.user(f"Say in a sentence how it does on {measure}.")
        fork += rs.assistant(rs.gen("why", max_tokens=32, stop="\n"))
        fork += rs.user("As a grade from 1 to 9:")
        fork += rs.assistant(rs.gen("grade", schema=Score, max_tokens=4))
    forks.join()
    return dict(zip(MEASURES, s["grade"]))


def main(backend):
    state = judge.run(LETTER, backend=backend, temperature=0)
    for (measure, grade), why in zip(state.ret_value.items(), state["why"]):
        print(f"{measure:<9} {grade}  {why.strip()}")
    return state


if __name__ == "__main__":
    with rs.Engine(*sys.argv[1:2]) as engine:
        main(engine)
