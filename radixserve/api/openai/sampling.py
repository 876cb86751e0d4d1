"""From the fields of an OpenAI body to what the gateway is asked.

Owns: the OpenAI names of sampling parameters, the default output bound. Must not know: the shape
of replies, prompts.
"""

from __future__ import annotations

from radixserve.api.openai.schema import Sampled, StreamOptions
from radixserve.errors import InvalidRequest
from radixserve.native.fields import read
from radixserve.native.stops import stop_patterns
from radixserve.wire.params import SamplingParams

_OUR_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}


def sampling_params(given: Sampled, default_max_tokens: int) -> SamplingParams:
    """Raises InvalidRequest naming the parameter as the client knows it."""
    bounds = [n for n in (given.max_tokens, given.max_completion_tokens) if n is not None]
    try:
        return SamplingParams(
            max_new_tokens=min(bounds, default=max(default_max_tokens, given.min_tokens)),
            min_new_tokens=given.min_tokens,
            temperature=given.temperature,
            top_k=given.top_k,
            top_p=given.top_p,
            min_p=given.min_p,
            frequency_penalty=given.frequency_penalty,
            presence_penalty=given.presence_penalty,
            repetition_penalty=given.repetition_penalty,
            logit_bias=given.logit_bias,
            stop=(given.stop,) if isinstance(given.stop, str) else tuple(given.stop),
            stop_token_ids=tuple(given.stop_token_ids),
            stop_regex=stop_patterns(given.stop_regex, "stop_regex"),
            ignore_eos=given.ignore_eos,
            seed=given.seed,
            n=given.n,
        )
    except InvalidRequest as error:
        raise _renamed(error, given) from None


def stream_options(given: Sampled) -> StreamOptions:
    """Raises InvalidRequest where they are given without stream."""
    if given.stream_options is None:
        return StreamOptions()
    if not given.stream:
        raise InvalidRequest("stream_options need stream: true", param="stream_options")
    neutral: dict[str, tuple[object, ...]] = {"include_obfuscation": (False,)}
    return read(StreamOptions, given.stream_options, refused=neutral, at="stream_options")


def _renamed(error: InvalidRequest, given: Sampled) -> InvalidRequest:
    message, param = error.message, error.param
    for ours, theirs in _OUR_NAMES.items():
        if ours == "max_new_tokens" and given.max_completion_tokens is not None:
            theirs = "max_completion_tokens"
        message = message.replace(ours, theirs)
        param = theirs if param == ours else param
    return InvalidRequest(message, param=param, code=error.code)
