"""Which numbers sampling parameters may have: those that no backend would take raise at once.

A default of run() that every gen() replaces would otherwise be wrong unnoticed. What only a backend
knows (its vocabulary, its context) it checks itself. Must not know: who says the numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

Check = Callable[[str, object], None]
_SEED_LIMIT = 2**63


def _whole(least: int, most: int = 2**31 - 1) -> Check:
    def check(name: str, value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be a whole number, not {value!r}")
        if not least <= value <= most:
            raise ValueError(f"{name} must be from {least} to {most}, not {value}")

    return check


def _real(least: float, most: float) -> Check:
    def check(name: str, value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{name} must be a number, not {value!r}")
        if not least <= value <= most:  # nan is in no range
            raise ValueError(f"{name} must be from {least:g} to {most:g}, not {value:g}")

    return check


def _stops(name: str, value: object) -> None:
    assert isinstance(value, tuple)
    for text in value:
        if not isinstance(text, str):
            raise TypeError(f"{name} must be a str or a list of them, not {text!r}")
        if not text:
            raise ValueError(f"{name} holds an empty text")


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")


LIMITS: dict[str, Check] = {
    "max_new_tokens": _whole(0),
    "min_new_tokens": _whole(0),
    "n": _whole(1),
    "stop": _stops,
    "stop_regex": _stops,
    "temperature": _real(0.0, 1e4),
    "top_p": _real(0.0, 1.0),
    "top_k": _whole(-1),
    "min_p": _real(0.0, 1.0),
    "frequency_penalty": _real(-2.0, 2.0),
    "presence_penalty": _real(-2.0, 2.0),
    "ignore_eos": _flag,
    "return_logprob": _flag,
    "logprob_start_len": _whole(-1),
    "top_logprobs_num": _whole(0),
    "sampling_seed": _whole(0, _SEED_LIMIT - 1),
    "field_logprobs": _flag,
    "separate_reasoning": _flag,
    "thinking_token_budget": _whole(0),
}


def bias(given: Mapping[int, float] | None) -> dict[int, float] | None:
    """logit_bias with whole token ids; None stays None."""
    if given is None:
        return None
    for token, value in given.items():
        _whole(0)("logit_bias", token)
        _real(-100.0, 100.0)("logit_bias", value)
    return dict(given)


def seconds(timeout: float | None) -> float | None:
    """A time that something may take: finite and more than 0."""
    if timeout is None:
        return None
    wrong = f"timeout must be a finite number of seconds above 0, not {timeout!r:.40}"
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(wrong)
    if not 0 < timeout <= sys.float_info.max:
        raise ValueError(wrong)
    return timeout
