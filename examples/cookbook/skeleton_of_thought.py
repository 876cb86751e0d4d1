"""A long answer in the time of a short one: first the points, then all of them at once.

python examples/cookbook/skeleton_of_thought.py [model]
"""

from __future__ import annotations

import sys

import radixserve as rs


@rs.function
def answer(s, question, points=3):
    s += rs.system("You write short guides.")
    s += rs.user(f"{question} Name {points} points, one word each.")
    with s.assistant():
        for i in range(points):
            s += f"{i + 1}. " + rs.gen(f"point{i}", max_tokens=8, stop=["\n", "."]) + "\n"
    titles = [s[f"point{i}"].strip() for i in range(points)]
    parts = s.fork(points)
    for part, title in zip(parts, titles):
        part += rs.user(f"Write one sentence on {title}.")
        part += rs.assistant(rs.gen("sentence", max_tokens=40, stop="\n"))
    parts.join()
    return list(zip(titles, s["sentence"]))


def main(backend):
    state = answer.run("How do I keep a dog happy?", backend=backend, temperature=0)
    for title, sentence in state.ret_value:
        print(f"{title}: {sentence.strip()}")
    return state


if __name__ == "__main__":
    with rs.Engine(*sys.argv[1:2]) as engine:
        main(engine)
