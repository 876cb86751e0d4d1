"""Sampling parameters as programs write them and as they go on the wire.

Owns: one record for what gen() and run() may say, and how one falls back on the other. Must not
know: how a call is sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, TypedDict

from radixserve.lang.limits import LIMITS

_BESIDE = (
    "return_logprob",
    "logprob_start_len",
    "top_logprobs_num",
    "return_text_in_logprobs",
    "separate_reasoning",
    "thinking_token_budget",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """None means: not said here. An empty tuple means: none.

    regex to constraint_mode: of lang.constraints; more_stop: texts to stop at beside `stop`.
    Construction raises ValueError or TypeError for a number that no backend takes.
    """

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    n: int | None = None
    stop: tuple[str, ...] | None = None
    stop_token_ids: tuple[int, ...] | None = None
    stop_regex: tuple[str, ...] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    ignore_eos: bool | None = None
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    return_text_in_logprobs: bool | None = None
    sampling_seed: int | None = None
    logit_bias: dict[int, float] | None = None
    regex: str | None = None
    json_schema: str | dict[str, Any] | bool | None = None
    ebnf: str | None = None
    choice: tuple[str, ...] | None = None
    structural_tag: str | dict[str, Any] | None = None
    json_object: bool | None = None
    whitespace: str | None = None
    constraint_mode: str | None = None
    field_logprobs: bool | None = None
    separate_reasoning: bool | None = None
    thinking_token_budget: int | None = None
    more_stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, check in LIMITS.items():
            if (value := getattr(self, name)) is not None:
                check(name, value)

    def over(self, defaults: Sampling) -> Sampling:
        """These values, and those of `defaults` where nothing was said."""
        merged: dict[str, Any] = {}
        for name in _NAMES:
            value = getattr(self, name)
            merged[name] = getattr(defaults, name) if value is None else value
        return Sampling(**merged)

    def params(self) -> dict[str, Any]:
        """The `sampling_params` of a call; what was left unsaid is left out."""
        return {name: value for name, value in self._said().items() if name not in _BESIDE}

    def beside(self) -> dict[str, Any]:
        """The fields of a call that stand beside `sampling_params`: log-probabilities and
        reasoning."""
        return {name: value for name, value in self._said().items() if name in _BESIDE}

    def _said(self) -> dict[str, Any]:
        said = {name: getattr(self, name) for name in _NAMES}
        said["stop"] = (*(self.stop or ()), *said.pop("more_stop"))
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in said.items()
            if value is not None and value != ()
        }


# fields() takes longer than all the rest of a call's parameters.
_NAMES = tuple(field.name for field in fields(Sampling))
FIELDS = _NAMES  # what gen() and run() may say, by name


def said_fields(sampling: Sampling) -> dict[str, Any]:
    """The fields that say something, by name; () says that there are to be none."""
    every = {name: getattr(sampling, name) for name in _NAMES}
    every["more_stop"] = sampling.more_stop or None
    return {name: value for name, value in every.items() if value is not None}


class RunDefaults(TypedDict, total=False):
    """The sampling arguments of run() and run_batch()."""

    max_new_tokens: int | None
    n: int | None
    stop: str | Iterable[str] | None
    stop_token_ids: Iterable[int] | None
    stop_regex: str | Iterable[str] | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    ignore_eos: bool | None
    return_logprob: bool | None
    logprob_start_len: int | None
    top_logprobs_num: int | None
    return_text_in_logprobs: bool | None


_NEUTRAL = Sampling(
    max_new_tokens=128, n=1, temperature=1.0, top_p=1.0, top_k=-1, min_p=0.0,
    frequency_penalty=0.0, presence_penalty=0.0, ignore_eos=False,
)  # fmt: skip


def run_defaults(given: RunDefaults) -> Sampling:
    """What a gen() that says nothing gets."""
    values: dict[str, Any] = dict(given)
    for name in ("stop", "stop_regex"):
        values[name] = stop_texts(values.get(name))
    values["stop_token_ids"] = token_ids(values.get("stop_token_ids"))
    unknown = set(values) - set(RunDefaults.__annotations__)
    if unknown:
        raise TypeError(f"unknown sampling argument {sorted(unknown)[0]!r}")
    return Sampling(**values).over(_NEUTRAL)


def stop_texts(stop: str | Iterable[str] | None) -> tuple[str, ...] | None:
    if stop is None:
        return None
    return (stop,) if isinstance(stop, str) else tuple(stop)


def token_ids(ids: Iterable[int] | None) -> tuple[int, ...] | None:
    return None if ids is None else tuple(ids)
