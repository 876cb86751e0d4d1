"""The ids of several choices behind one prompt.

Owns: where the prompt ends and the choices begin, in tokens, and not tokenising a long prompt once
per choice. Must not know: parts, roles, scores.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from radixserve.errors import InvalidRequest
from radixserve.text.tokenizer import IdArray, Run, Tokenizer

MAX_REPEATED = 8 * 2**20
_WORD_BORDER = re.compile(r"[A-Za-z](?= [A-Za-z])")


@dataclass(frozen=True, slots=True)
class EncodedChoice:
    """ids: [n] int32, what follows the prompt when this choice is taken."""

    text: str
    ids: IdArray


def encode_choices(
    tokenizer: Tokenizer,
    tail: Sequence[Run],
    choices: Sequence[Run],
    *,
    opens: bool,
    bos: bool,
    limit: int | None = None,
) -> tuple[IdArray, tuple[EncodedChoice, ...]]:
    """(ids of the tail, ids of each choice behind them), parted at the longest beginning that the
    tail alone and the tail with each choice have in common.

    tail: the text before the choices that is not tokenised yet. opens, bos: see Tokenizer.encode.
    limit: see Tokenizer.encode_runs. Raises InvalidRequest where what every choice repeats of the
    tail comes to more than MAX_REPEATED characters.

    Worked example: tail "a" with the choices "b" and "bc", where "ab" is a token and "abc" is not:
    tail [a], tail with choices [ab] and [ab, c], so nothing is common and the choices are [ab] and
    [ab, c].
    """
    settled, rest = split_settled(tokenizer, tail)
    repeated = len(choices) * sum(len(run.text) for run in rest)
    if repeated > MAX_REPEATED:
        raise InvalidRequest(
            f"the text before the choices, tokenised with each of them, comes to {repeated} "
            f"characters, at most {MAX_REPEATED} are allowed; a border before its end helps"
        )
    encode = partial(tokenizer.encode_runs, bos=bos, limit=limit)
    start = encode(settled, opens=opens) if settled else _NOTHING
    opens = opens and not settled
    alone = encode(rest, opens=opens)
    whole = [encode([*rest, run], opens=opens) for run in choices]
    common = min(_common_prefix(alone, ids) for ids in whole)
    encoded = tuple(EncodedChoice(run.text, ids[common:]) for run, ids in zip(choices, whole))
    return np.concatenate([start, alone[:common]]), encoded


def split_settled(tokenizer: Tokenizer, runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """Cut `runs` in two where no text that follows can change the ids before the cut.

    That is before a control token, and between two words where the rules of the tokenizer are
    known; everything is unsettled where neither is found.
    """
    for i in range(len(runs) - 1, -1, -1):
        run = runs[i]
        cut = _last_border(tokenizer, run)
        if cut:
            before, after = Run(run.text[:cut], run.special), Run(run.text[cut:], run.special)
            return [*runs[:i], before], [after, *runs[i + 1 :]]
        if cut == 0 and i > 0:
            return list(runs[:i]), list(runs[i:])
    return [], list(runs)


def _last_border(tokenizer: Tokenizer, run: Run) -> int | None:
    if not tokenizer.has_hard_borders:
        return None
    borders = []
    if run.special:
        pieces = tokenizer.split_control(run.text)
        starts = np.cumsum([0, *(len(piece) for piece, _ in pieces)])
        borders += [int(at) for at, (_, is_control) in zip(starts, pieces) if is_control]
    if tokenizer.splits_words:
        borders += [match.end() for match in _WORD_BORDER.finditer(run.text)]
    return max(borders, default=None)


_NOTHING: IdArray = np.empty(0, np.int32)


def _common_prefix(one: IdArray, other: IdArray) -> int:
    n = min(len(one), len(other))
    differs = np.flatnonzero(one[:n] != other[:n])
    return int(differs[0]) if len(differs) else n
