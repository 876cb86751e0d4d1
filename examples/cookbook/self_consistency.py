"""Ask several times, take the answer that comes most often.

gen(n=k) samples k answers for one prompt, which is computed once.

    python examples/cookbook/self_consistency.py [model]
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Annotated

import pydantic

import radixserve as rs

Legs = Annotated[int, pydantic.Field(ge=0, le=20)]


@rs.function
def vote(s, question, tries=7):
    s += rs.system("Answer with a number only.")
    s += rs.user(question)
    s += rs.assistant(rs.gen("answers", schema=Legs, n=tries, max_tokens=8, temperature=0.9))
    return Counter(s["answers"]).most_common()


def main(backend):
    state = vote.run("How many legs have two dogs?", backend=backend, seed=3)
    for answer, votes in state.ret_value:
        print(f"{'#' * votes} {answer}")
    return state


if __name__ == "__main__":
    with rs.Engine(*sys.argv[1:2]) as engine:
        main(engine)
