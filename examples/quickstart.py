"""The main job in one file: programs that share prompts, on a real model.

    python examples/quickstart.py [--model smollm2] [--no-compare]

A city guide is read once. One program asks it several questions at the same time (fork), picks an
answer from a list (select) and a second program labels a batch of reviews (run_batch). At the end
a table says what was computed and what was reused, beside the same run with the cache off.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import radixserve as rs

GUIDE = """You answer questions about the town of Harrow Bay from this guide.

Harrow Bay is a fishing town of about nine thousand people on the north coast. The old harbour was
built in 1788 and still lands herring and crab every morning except Sunday. Market Street runs from
the harbour to the station; most of its shops are closed on Mondays. The lighthouse on Gull Point
can be climbed from April to October, 142 steps, tickets at the gate. The number 7 bus goes from the
station to Gull Point every half hour. Trains leave for the city at ten past each hour and take
fifty minutes. The best known dish is crab soup with dill bread; the Blue Anchor has served it since
1921. The museum of nets and knots, in the old rope works, is free and opens at ten. In August the
herring fair fills the harbour with boats, music and smoke for three days. Swimming is safe on the
east beach, where there are lifeguards in summer, and forbidden at Gull Point because of the
current. Rain is common; locals say that a coat is never left at home.
"""

QUESTIONS = [
    "How do I get from the station to Gull Point?",
    "What should I eat in Harrow Bay, and where?",
    "Where is it safe to swim?",
    "When was the old harbour built?",
]

REVIEWS = [
    "The crab soup was wonderful and the staff could not have been kinder.",
    "We waited an hour in the rain and the museum was shut. Never again.",
    "Lovely view from the lighthouse, worth every one of the 142 steps!",
    "The bus was late, the room was cold and the bread was stale.",
    "A charming town. The children loved the herring fair.",
    "Dirty beach, rude lifeguard, terrible afternoon.",
]


@rs.function
def ask_guide(s, questions):
    """One guide, many questions: the children share everything before their own question."""
    s += rs.system(GUIDE)
    children = s.fork(len(questions))
    for child, question in zip(children, questions):
        child += rs.user(question)
        child += rs.assistant(rs.gen("answer", max_tokens=40, temperature=0))
    children.join()
    s += rs.user("Which month has the herring fair?")
    s += rs.assistant(rs.select("month", ["April", "August", "October", "December"]))


@rs.function
def label_review(s, review):
    s += rs.system(
        "You label reviews of a seaside town as positive or negative. Answer with one word."
    )
    s += rs.user("We had a great time and will come back.")
    s += rs.assistant("positive")
    s += rs.user("It was awful and much too expensive.")
    s += rs.assistant("negative")
    s += rs.user(review)
    s += rs.assistant(rs.select("label", ["positive", "negative"]))


@dataclass
class Run:
    """What one pass over both programs cost."""

    seconds: float
    requests: int
    prompt_tokens: int
    computed_tokens: int
    generated_tokens: int

    @property
    def reused(self) -> int:
        return self.prompt_tokens - self.computed_tokens


def run_programs(model: str, *, prefix_cache: bool, show: bool) -> Run:
    with rs.Engine(model, prefix_cache=prefix_cache) as engine:
        rs.set_default_backend(engine)
        started = time.perf_counter()
        guide = ask_guide.run(QUESTIONS)
        labels = label_review.run_batch([{"review": review} for review in REVIEWS])
        seconds = time.perf_counter() - started
        gauges = engine.gauges()
    if show:
        for question, answer in zip(QUESTIONS, guide["answer"]):
            print(f"Q: {question}\nA: {answer.strip()}\n")
        print(f"Month of the herring fair: {guide['month']}\n")
        for review, label in zip(REVIEWS, labels):
            print(f"{label['label']:>9}  {review}")
    return Run(
        seconds,
        gauges.requests,
        gauges.prompt_tokens,
        gauges.computed_tokens,
        gauges.generated_tokens,
    )


def print_table(runs: dict[str, Run]) -> None:
    print()
    print(f"{'':<16}" + "".join(f"{name:>12}" for name in runs))
    rows = {
        "requests": lambda run: f"{run.requests:,}",
        "prompt tokens": lambda run: f"{run.prompt_tokens:,}",
        "  computed": lambda run: f"{run.computed_tokens:,}",
        "  reused": lambda run: f"{run.reused:,}",
        "hit rate": lambda run: f"{100 * run.reused / run.prompt_tokens:.0f}%",
        "output tokens": lambda run: f"{run.generated_tokens:,}",
        "seconds": lambda run: f"{run.seconds:.2f}",
    }
    for name, cell in rows.items():
        print(f"{name:<16}" + "".join(f"{cell(run):>12}" for run in runs.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--no-compare", action="store_true", help="skip the run without a cache")
    arguments = parser.parse_args()
    runs = {"cache on": run_programs(arguments.model, prefix_cache=True, show=True)}
    if not arguments.no_compare:
        runs["cache off"] = run_programs(arguments.model, prefix_cache=False, show=False)
    print_table(runs)


if __name__ == "__main__":
    main()
