"""What a Messages body says of reasoning.

Owns: thinking, and the effort of output_config. Must not know: how a model reasons.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from radixserve.api.turns.reasoning import Thoughts
from radixserve.errors import InvalidRequest
from radixserve.native.fields import read

Display = Literal["summarized", "omitted"]
Effort = Literal["low", "medium", "high", "xhigh", "max"]

# "high" is what that API does unasked, and asks for nothing here.
_EFFORTS: dict[Effort, str | None] = {
    "low": "low",
    "medium": "medium",
    "high": None,
    "xhigh": "xhigh",
    "max": "xhigh",
}


class ThinkingConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """enabled: the model is to reason, in at most budget_tokens. adaptive: in as many as it likes.
    disabled: not at all, where its template can say so. display: omitted leaves the text out of the
    reply; summarized gives all of it."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = None
    display: Display | None = None


def thinking_config(raw: dict[str, Any] | None, max_tokens: int | None) -> ThinkingConfig | None:
    """None where a body says nothing, and the model does what it does by itself. max_tokens: the
    bound of the output, where there is one. Raises InvalidRequest naming the field."""
    if raw is None:
        return None
    config = read(ThinkingConfig, raw, at="thinking")
    if (config.budget_tokens is None) == (config.type == "enabled"):
        has = "needs" if config.budget_tokens is None else "has no use for"
        raise _refused(f"thinking of type {config.type} {has} budget_tokens")
    if config.budget_tokens is not None:
        if config.budget_tokens < 1:
            raise _refused("thinking.budget_tokens must be at least 1")
        if max_tokens is not None and config.budget_tokens >= max_tokens:
            raise _refused(
                f"thinking.budget_tokens ({config.budget_tokens}) must be less than max_tokens "
                f"({max_tokens}), which counts both"
            )
    if config.type == "disabled" and config.display is not None:
        raise _refused("thinking of type disabled has no use for display", "thinking.display")
    return config


def thoughts_of(config: ThinkingConfig | None, effort: Effort | None) -> Thoughts:
    return Thoughts(
        budget=None if config is None else config.budget_tokens,
        effort=None if effort is None else _EFFORTS[effort],
        is_on=None if config is None else config.type != "disabled",
        budget_field="thinking.budget_tokens",
        effort_field="output_config.effort",
    )


def _refused(message: str, param: str = "thinking.budget_tokens") -> InvalidRequest:
    return InvalidRequest(message, param=param)
