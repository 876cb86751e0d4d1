"""Sampling parameters by their native names.

Owns: the names, the defaults, which are refused. Must not know: prompts, replies.
"""

from __future__ import annotations

from typing import Any, NamedTuple, get_args

import msgspec

from radixserve.errors import InvalidRequest
from radixserve.native.constraint import Mode, Wish, telling_fields, wish
from radixserve.native.fields import read
from radixserve.native.stops import stop_patterns
from radixserve.wire.params import ConstraintKind, SamplingParams, Whitespace

# Known names that have no effect here yet, with the values that ask for none.
REFUSED_SAMPLING: dict[str, tuple[Any, ...]] = {
    "custom_params": ({},),
}

KINDS: tuple[ConstraintKind, ...] = get_args(ConstraintKind)


class Sampling(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The sampling parameters by their native names; SamplingParams has what they mean.

    regex to json_object: at most one; Constraint has what they mean. json_schema, structural_tag:
    JSON as text or as itself. constraint_mode: "validate" leaves out what cannot be enforced of a
    schema, and the reply says what the text breaks of it. field_logprobs: the reply says how sure
    the model was of each field of the text, see confidence.py.

    skip_special_tokens: false spells control tokens in the text, as the tokenizer does: without
    spaces around them, so spaces_between_special_tokens changes nothing, whichever way.
    no_stop_trim: the text ends with the stop string or the text of the stop token.
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
    stop: str | list[str] = []
    stop_token_ids: list[int] = []
    stop_regex: str | list[str] = []
    ignore_eos: bool = False
    sampling_seed: int | None = None
    n: int = 1
    regex: str | None = None
    json_schema: str | dict[str, Any] | bool | None = None
    ebnf: str | None = None
    choice: list[str] | None = None
    structural_tag: str | dict[str, Any] | None = None
    json_object: bool = False
    whitespace: Whitespace = "fixed"
    constraint_mode: Mode = "enforce"
    field_logprobs: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False


class Asked(NamedTuple):
    """shows_special, keeps_stop: see chunks.Request."""

    params: SamplingParams
    wish: Wish | None
    shows_special: bool
    keeps_stop: bool


def sampling_params(raw: object, at: str = "sampling_params") -> Asked:
    """What a native dictionary asks for. Raises InvalidRequest naming the parameter."""
    given = read(Sampling, raw, refused=REFUSED_SAMPLING, at=at)
    shows_special = not given.skip_special_tokens
    return Asked(_params(given, at), _wish(given, at), shows_special, given.no_stop_trim)


def _wish(given: Sampling, at: str) -> Wish | None:
    found = wish(
        {f"{at}.{kind}": (kind, getattr(given, kind)) for kind in KINDS},
        whitespace=given.whitespace,
        mode=given.constraint_mode,
        limit=f"{at}.max_new_tokens",
        at=at,
    )
    return telling_fields(found, given.field_logprobs, f"{at}.")


def _params(given: Sampling, at: str) -> SamplingParams:
    names = set(SamplingParams.__struct_fields__) & set(given.__struct_fields__)
    fields = {name: getattr(given, name) for name in names}
    fields["seed"] = given.sampling_seed
    fields["stop"] = (given.stop,) if isinstance(given.stop, str) else tuple(given.stop)
    fields["stop_token_ids"] = tuple(given.stop_token_ids)
    fields["stop_regex"] = stop_patterns(given.stop_regex, f"{at}.stop_regex")
    try:
        return SamplingParams(**fields)
    except InvalidRequest as error:
        name = "sampling_seed" if error.param == "seed" else error.param
        raise InvalidRequest(error.message, param=f"{at}.{name}", code=error.code) from None
