"""Sampling parameters by their native names.

Owns: the names, the defaults, which are refused. Must not know: prompts, replies.
"""

from __future__ import annotations

from typing import Any

import msgspec

from radixserve.errors import InvalidRequest
from radixserve.native.fields import read
from radixserve.wire.params import SamplingParams

# Known names that have no effect here yet, with the values that ask for none.
REFUSED_SAMPLING: dict[str, tuple[Any, ...]] = {
    "regex": (),
    "json_schema": (),
    "ebnf": (),
    "structural_tag": (),
    "stop_regex": ("", []),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "no_stop_trim": (False,),
    "custom_params": ({},),
}


class Sampling(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The sampling parameters by their native names; SamplingParams has what they mean."""

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
    ignore_eos: bool = False
    sampling_seed: int | None = None
    n: int = 1


def sampling_params(raw: object, at: str = "sampling_params") -> SamplingParams:
    """SamplingParams of a native dictionary. Raises InvalidRequest naming the parameter."""
    given = read(Sampling, raw, refused=REFUSED_SAMPLING, at=at)
    fields = {name: getattr(given, name) for name in given.__struct_fields__}
    fields["seed"] = fields.pop("sampling_seed")
    fields["stop"] = (given.stop,) if isinstance(given.stop, str) else tuple(given.stop)
    fields["stop_token_ids"] = tuple(given.stop_token_ids)
    try:
        return SamplingParams(**fields)
    except InvalidRequest as error:
        name = "sampling_seed" if error.param == "seed" else error.param
        raise InvalidRequest(error.message, param=f"{at}.{name}", code=error.code) from None
