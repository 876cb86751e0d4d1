"""Which calls of a program follow each other at once.

Owns: the number of calls that begin as soon as one has ended. Must not know: how a graph is run,
what a call is.
"""

from __future__ import annotations

from collections import Counter

from radixserve.lang.compiled.graph import Fork, Graph


def followers(graph: Graph) -> dict[str, int]:
    """By the place of each call in a run (see lang.asking.Place), how many begin when it has
    ended. One that waits for several begins, as far as this knows, behind the last of them in the
    program's order."""
    direct = Counter(max(needs) for needs in graph.needs.values() if needs)
    places = _places(graph)
    return {places[call]: count for call, count in direct.items()}


def _places(graph: Graph) -> dict[int, str]:
    """The place of each call, by its step."""
    found: dict[int, str] = {}
    prefixes = {0: ""}
    counts: Counter[int] = Counter()
    calls = set(graph.calls)
    for number, step in enumerate(graph.steps):
        here = f"{prefixes[step.on]}{counts[step.on]}"
        if number in calls:
            found[number] = here
        elif isinstance(step.do, Fork):
            prefixes |= {child: f"{here}.{i}." for i, child in enumerate(step.do.children)}
        else:
            continue
        counts[step.on] += 1
    return found
