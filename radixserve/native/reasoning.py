"""Reasoning in native bodies.

Owns: its two fields, what is wrong with them. Must not know: tags, how their end is enforced,
replies.
"""

from __future__ import annotations

from radixserve.errors import InvalidRequest
from radixserve.text.renderer import Renderer
from radixserve.wire.reasoning import Reasoning

MAX_BUDGET = 2**31 - 1


def reasoning_of(
    prompt: bytes, renderer: Renderer, *, separates: bool, budget: int | None
) -> Reasoning | None:
    """How the outputs of `prompt` reason, where the body asks for anything of it. Raises
    InvalidRequest where the model has no reasoning."""
    check_budget(budget, "thinking_token_budget")
    if not separates and budget is None:
        return None
    if renderer.reasoning is None:
        raise no_reasoning("separate_reasoning" if separates else "thinking_token_budget")
    return renderer.reasoning.of(prompt, budget=budget)


def check_budget(budget: int | None, field: str) -> None:
    """Raise InvalidRequest for what is no count of tokens."""
    if budget is not None and not 0 <= budget <= MAX_BUDGET:
        raise InvalidRequest(f"{field} is a count of tokens, not {budget}", param=field)


def no_reasoning(field: str) -> InvalidRequest:
    return InvalidRequest(
        f"{field}: this model does not reason, or its tags are not known (--reasoning-parser)",
        param=field,
        code="unsupported_parameter",
    )
