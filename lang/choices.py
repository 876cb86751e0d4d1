"""How select() picks: four methods, each a formula over the candidates' log-probabilities.

With l[1..n] the log-probabilities of a choice's n tokens after the prompt and u[1..n] those of
the same tokens without the prompt:

    token_length_normalized               max of  sum(l) / n
    greedy_token_selection                token by token, the best next token among the choices left
    unconditional_likelihood_normalized   max of  sum(l - u) / n
    probability                           max of  exp(sum(l)), less what longer choices hold of it

The sum over no tokens (an empty choice) scores 0. A token that has no u, because the model has no
token that begins a text and nothing else stands before it, counts as u = 0. Ties go to the choice
written first. A method of your own is any object with `name`, `needs_unconditional` and `decide`.
Must not know: backends.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Candidate:
    """One choice as the model sees it.

    ids: [n] its tokens, from the first one that differs from the prompt's. logprobs: [n].
    unconditional: [n], None for a token without one; None where the method did not ask.
    """

    text: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    unconditional: tuple[float | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """index: the chosen candidate. meta: what the method computed, by name."""

    index: int
    meta: dict[str, Any]


class ChoicesMethod(Protocol):
    """decide() is a pure function of the candidates (at least one)."""

    @property
    def name(self) -> str: ...

    @property
    def needs_unconditional(self) -> bool: ...

    def decide(self, candidates: Sequence[Candidate]) -> Decision: ...


@dataclass(frozen=True, slots=True)
class TokenLengthNormalized:
    """Highest mean log-probability per token: sum(l) / n.

    -1.2 for one token beats [-9, -1, -1, -1, -1, -1] (mean -2.33).
    """

    name: str = "token_length_normalized"
    needs_unconditional: bool = False

    def decide(self, candidates: Sequence[Candidate]) -> Decision:
        scores = [_mean(each.logprobs) for each in candidates]
        return Decision(_best(scores), {"scores": scores})


@dataclass(frozen=True, slots=True)
class GreedyTokenSelection:
    """The choice that greedy decoding would walk into, were only the choices allowed.

    At step i the choices left are grouped by their token i, the group with the best log-probability
    stays, the others go. A choice that has ended competes with its mean log-probability as if it
    went on. scores: a choice's log-probability at the last step where it was still in.
    """

    name: str = "greedy_token_selection"
    needs_unconditional: bool = False

    def decide(self, candidates: Sequence[Candidate]) -> Decision:
        left = list(range(len(candidates)))
        scores = [_at(each, 0) for each in candidates]
        step = 0
        while len(left) > 1 and any(step < len(candidates[i].ids) for i in left):
            for i in left:
                scores[i] = _at(candidates[i], step)
            first = max(left, key=lambda i: scores[i])
            token = _token(candidates[first], step)
            left = [i for i in left if _token(candidates[i], step) == token]
            step += 1
        return Decision(left[0], {"scores": scores, "steps": step})


@dataclass(frozen=True, slots=True)
class UnconditionalLikelihoodNormalized:
    """Highest mean gain over the choice's likelihood without the prompt: sum(l - u) / n."""

    name: str = "unconditional_likelihood_normalized"
    needs_unconditional: bool = True

    def decide(self, candidates: Sequence[Candidate]) -> Decision:
        scores = []
        for each in candidates:
            if each.unconditional is None:
                raise ValueError(f"choice {each.text!r} came without unconditional scores")
            scores.append(_mean(each.logprobs) - _mean([u or 0.0 for u in each.unconditional]))
        return Decision(_best(scores), {"scores": scores})


@dataclass(frozen=True, slots=True)
class Probability:
    """The likeliest choice, as the longest of the choices that the model would begin with.

    p = exp(sum(l)) is how likely the text begins with a choice's tokens. Where longer choices begin
    with them too ("1", "10"), those hold a part of it: a choice keeps p less the p of the longer
    ones right above it. What all keep and the mass `outside` them come to 1; `scores` are the kept
    parts, made to sum to 1. Equal choices share theirs, and are one when it comes to the best.

    Worked example: p("1") = 0.5 and p("10") = 0.3 on the same first token, p("2") = 0.2: kept are
    0.2, 0.3, 0.2, outside is 0.3, the scores are 2/7, 3/7, 2/7.
    """

    name: str = "probability"
    needs_unconditional: bool = False

    def decide(self, candidates: Sequence[Candidate]) -> Decision:
        logs: dict[tuple[int, ...], float] = {}
        for each in candidates:
            logs.setdefault(each.ids, sum(each.logprobs))
        kept = _kept(logs)
        whole = sum(kept.values())
        share = {ids: part / whole if whole else 1 / len(kept) for ids, part in kept.items()}
        times = Counter(each.ids for each in candidates)
        best = _best([share[each.ids] for each in candidates])
        scores = [share[each.ids] / times[each.ids] for each in candidates]
        reached = math.exp(_most(logs)) * whole
        return Decision(best, {"scores": scores, "outside": max(0.0, 1.0 - reached)})


token_length_normalized = TokenLengthNormalized()
greedy_token_selection = GreedyTokenSelection()
unconditional_likelihood_normalized = UnconditionalLikelihoodNormalized()
probability = Probability()

METHODS: dict[str, ChoicesMethod] = {
    method.name: method
    for method in (
        token_length_normalized,
        greedy_token_selection,
        unconditional_likelihood_normalized,
        probability,
    )
}


def _most(logs: dict[tuple[int, ...], float]) -> float:
    """The largest of them, to measure the others by: exp() of a long choice's own is 0."""
    most = max(logs.values())
    return most if most > -math.inf else 0.0


def _kept(logs: dict[tuple[int, ...], float]) -> dict[tuple[int, ...], float]:
    """exp(log - the largest log) of each choice, less those right above it."""
    most = _most(logs)
    held = {ids: math.exp(log - most) for ids, log in logs.items()}
    kept = dict(held)
    path: list[tuple[int, ...]] = []
    for ids in sorted(held):  # a beginning comes before what goes on from it
        while path and ids[: len(path[-1])] != path[-1]:
            path.pop()
        if path:
            kept[path[-1]] -= held[ids]
        path.append(ids)
    return {ids: max(0.0, part) for ids, part in kept.items()}


def _mean(logprobs: Sequence[float]) -> float:
    return sum(logprobs) / len(logprobs) if logprobs else 0.0


def _best(scores: Sequence[float]) -> int:
    return max(range(len(scores)), key=lambda i: scores[i])


def _at(candidate: Candidate, step: int) -> float:
    if step < len(candidate.logprobs):
        return candidate.logprobs[step]
    return _mean(candidate.logprobs)


def _token(candidate: Candidate, step: int) -> int | None:
    return candidate.ids[step] if step < len(candidate.ids) else None


def common_prefix(rows: Sequence[Sequence[int | str]]) -> int:
    """How many tokens at the beginning all rows have in common."""
    same = 0
    for column in zip(*rows):
        if len(set(column)) > 1:
            break
        same += 1
    return same
