"""How one request wants its tokens chosen.

Owns: SamplingParams and Constraint, checked on construction (also when decoded from the wire), so
code below the border trusts every field. Must not know: HTTP, tokenizers, tensors, what a schema
means.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import msgspec

from radixserve.errors import InvalidRequest

MAX_STOPS = 16
MAX_STOP_BYTES = 1024
MAX_STOP_TOKEN_IDS = 64
MAX_LOGIT_BIAS = 1024
MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20
GREEDY_BELOW = 1e-6
SEED_LIMIT = 2**63

ConstraintKind = Literal["json_schema", "json_object", "regex", "ebnf", "choice", "structural_tag"]
Whitespace = Literal["fixed", "bounded"]
Writing = Literal["fixed", "bounded", "python"]
MAX_CONSTRAINT_BYTES: dict[ConstraintKind, int] = {
    "json_schema": 256 * 1024,
    "json_object": 0,
    "regex": 8 * 1024,
    "ebnf": 64 * 1024,
    "choice": 256 * 1024,
    "structural_tag": 64 * 1024,
}


class StopPattern(msgspec.Struct, frozen=True, array_like=True):
    """A regular expression as an automaton over characters; state 0 is the start.

    moves: by state, (low, high, target) in ascending order. ends: states in which the text so far
    holds a match.
    """

    text: str
    moves: tuple[tuple[tuple[int, int, int], ...], ...]
    ends: tuple[int, ...]


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling of one request. Filters apply in the order temperature, top_k, top_p, min_p.

    max_new_tokens: output bound; 0 computes the prompt only.
    min_new_tokens: stop ids are masked, stop strings ignored, until so many tokens are out.
    temperature: below 1e-6 is greedy. top_k: 0 or -1 is off. top_p, min_p: in [0, 1].
    frequency_penalty, presence_penalty: over output tokens, in [-2, 2].
    repetition_penalty: over prompt and output tokens, in (0, 10].
    logit_bias: token id to addend in [-100, 100].
    stop: texts that end the output where they begin. stop_token_ids: ids that end it.
    stop_regex: patterns that end it behind the token in which they first match; text of the first
    min_new_tokens is not looked at.
    ignore_eos: the model's own end tokens do not end the output (stop_token_ids still do).
    seed: in [0, 2**63); None is drawn by the gateway. n: outputs for one prompt.
    """

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_regex: tuple[StopPattern, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    n: int = 1

    def __post_init__(self) -> None:
        _whole("max_new_tokens", self.max_new_tokens, 0, 2**31 - 1)
        _whole("min_new_tokens", self.min_new_tokens, 0, 2**31 - 1)
        if self.min_new_tokens > self.max_new_tokens:
            raise InvalidRequest(
                f"min_new_tokens ({self.min_new_tokens}) is more than max_new_tokens "
                f"({self.max_new_tokens})",
                param="min_new_tokens",
            )
        _real("temperature", self.temperature, 0.0, 1e4)
        _whole("top_k", self.top_k, -1, 2**31 - 1)
        _real("top_p", self.top_p, 0.0, 1.0)
        _real("min_p", self.min_p, 0.0, 1.0)
        _real("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _real("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _real("repetition_penalty", self.repetition_penalty, 1e-3, 10.0)
        _a("ignore_eos", self.ignore_eos, bool, "true or false")
        _whole("n", self.n, 1, MAX_CHOICES)
        if self.seed is not None:
            _whole("seed", self.seed, 0, SEED_LIMIT - 1)
        self._check_stops()
        self._check_bias()

    def _check_stops(self) -> None:
        _a("stop", self.stop, tuple, "a tuple of strings")
        if len(self.stop) > MAX_STOPS:
            raise InvalidRequest(
                f"stop has {len(self.stop)} entries, at most {MAX_STOPS}", param="stop"
            )
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise InvalidRequest("stop entries are non-empty strings", param="stop")
            if _has_lone_surrogate(text):
                raise InvalidRequest("stop holds a lone surrogate", param="stop")
            if len(text.encode()) > MAX_STOP_BYTES:
                raise InvalidRequest(
                    f"a stop entry is longer than {MAX_STOP_BYTES} bytes", param="stop"
                )
        _a("stop_token_ids", self.stop_token_ids, tuple, "a tuple of token ids")
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise InvalidRequest(
                f"stop_token_ids has {len(self.stop_token_ids)} entries, "
                f"at most {MAX_STOP_TOKEN_IDS}",
                param="stop_token_ids",
            )
        for token in self.stop_token_ids:
            _whole("stop_token_ids", token, 0, 2**31 - 1)

        _a("stop_regex", self.stop_regex, tuple, "a tuple of patterns")
        if len(self.stop_regex) > MAX_STOPS:
            raise InvalidRequest(
                f"stop_regex has {len(self.stop_regex)} entries, at most {MAX_STOPS}",
                param="stop_regex",
            )
        for pattern in self.stop_regex:
            _a("stop_regex", pattern, StopPattern, "a tuple of patterns")

    def _check_bias(self) -> None:
        _a("logit_bias", self.logit_bias, dict, "a map from token ids to numbers")
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise InvalidRequest(
                f"logit_bias has {len(self.logit_bias)} entries, at most {MAX_LOGIT_BIAS}",
                param="logit_bias",
            )
        for token, bias in self.logit_bias.items():
            _whole("logit_bias", token, 0, 2**31 - 1)
            _real("logit_bias", bias, -100.0, 100.0)

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW


class Constraint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the output must match, wholly.

    value: JSON text of the schema, the pattern, the grammar, or a JSON list of the choices; empty
    for json_object. whitespace: blanks around JSON punctuation, one fixed spelling or runs of at
    most 8; "python" writes a schema as the arguments of a Python call (structural tags only).
    marks: tokens with which the model marks its calls (Setup.marks) stand for their texts.
    """

    kind: ConstraintKind
    value: str = ""
    whitespace: Writing = "fixed"
    marks: bool = False

    def __post_init__(self) -> None:
        if self.kind not in get_args(ConstraintKind):
            raise InvalidRequest(f"no such constraint: {self.kind!r}", param="kind")
        _a(self.kind, self.value, str, "a string")
        if self.whitespace not in get_args(Writing):
            raise InvalidRequest(
                f'whitespace is "fixed" or "bounded", not {self.whitespace!r}', param="whitespace"
            )
        if _has_lone_surrogate(self.value):
            raise InvalidRequest(f"{self.kind} holds a lone surrogate", param=self.kind)
        size, limit = len(self.value.encode()), MAX_CONSTRAINT_BYTES[self.kind]
        if size > limit:
            raise InvalidRequest(
                f"{self.kind} has {size} bytes, at most {limit} are possible", param=self.kind
            )


def _a(name: str, value: object, kind: type, wanted: str) -> None:
    if not isinstance(value, kind):
        raise InvalidRequest(f"{name} must be {wanted}, not {value!r}", param=name)


def _whole(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{name} must be a whole number, not {value!r}", param=name)
    if not low <= value <= high:
        raise InvalidRequest(f"{name} must be from {low} to {high}, not {value}", param=name)


def _real(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"{name} must be a number, not {value!r}", param=name)
    if not math.isfinite(value) or not low <= value <= high:
        raise InvalidRequest(f"{name} must be from {low} to {high}, not {value}", param=name)


def _has_lone_surrogate(text: str) -> bool:
    return any(0xD800 <= ord(ch) <= 0xDFFF for ch in text)
