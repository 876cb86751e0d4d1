"""What a client wishes of an output's reasoning.

Owns: what switches it on and off, its effort and budget, what of a prompt says where it begins.
Must not know: any dialect's fields, how its end is enforced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from radixserve.errors import InvalidRequest
from radixserve.native.reasoning import check_budget, no_reasoning
from radixserve.text.reasoning import Place, continued
from radixserve.text.renderer import Renderer
from radixserve.wire.reasoning import Reasoning

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
EFFORTS: tuple[Effort, ...] = get_args(Effort)
# Most tokens of reasoning, where a model's template has no efforts of its own.
BUDGETS: dict[Effort, int] = {"minimal": 256, "low": 1024, "medium": 4096, "high": 16_384}
# What templates call these.
EFFORT = "reasoning_effort"
SWITCHES = ("enable_thinking", "thinking")


@dataclass(frozen=True, slots=True, kw_only=True)
class Thoughts:
    """separates: reasoning is told apart from the answer. budget: most tokens of it. effort: of the
    model, told to its template or turned into a budget; "none" switches reasoning off. is_on: what
    the client says of whether to reason; None leaves it to the template. budget_field,
    effort_field: what the client calls them.
    """

    separates: bool = True
    budget: int | None = None
    effort: str | None = None
    is_on: bool | None = None
    budget_field: str = "thinking_token_budget"
    effort_field: str = "reasoning_effort"


def reasoning_of(
    thoughts: Thoughts, renderer: Renderer, prompt: bytes, begun: str | None
) -> Reasoning | None:
    """How the outputs of `prompt` reason; None where they do not. begun: what an answer that goes
    on has so far. Raises InvalidRequest for a budget where the model has no reasoning, or that is
    no count."""
    budget = thoughts.budget
    check_budget(budget, thoughts.budget_field)
    tokens = renderer.reasoning
    if tokens is None:
        if budget is not None:
            raise no_reasoning(thoughts.budget_field)
        return None
    place: Place | None = None
    if begun is not None:
        place = continued(begun, tokens.thinking.tags)
    if budget is None and _is_budgeted(thoughts, renderer):
        budget = BUDGETS.get(_effort(thoughts))
    found = tokens.of(prompt, place=place, budget=budget)
    if found is not None and found.start == "either" and _is_off(thoughts):
        return None  # the template says nothing of it, and the client says that there is none
    return found


def variables_of(
    thoughts: Thoughts, variables: Mapping[str, Any], renderer: Renderer
) -> dict[str, Any]:
    """The template's variables, with what it is to know of reasoning. Raises InvalidRequest."""
    told = dict(variables)
    if thoughts.effort is not None:
        if thoughts.effort not in EFFORTS:
            raise InvalidRequest(
                f"{thoughts.effort_field} is one of {', '.join(EFFORTS)}, not "
                f"{thoughts.effort!a:.60}",
                param=thoughts.effort_field,
            )
        if renderer.reasoning is None and thoughts.effort != "none":
            raise no_reasoning(thoughts.effort_field)
        if _knows_effort(renderer):
            told.setdefault(EFFORT, thoughts.effort)
    is_on = False if _is_off(thoughts) else thoughts.is_on
    for switch in SWITCHES if is_on is not None else ():
        told.setdefault(switch, is_on)
    return told


def _effort(thoughts: Thoughts) -> Effort:
    return next((effort for effort in EFFORTS if effort == thoughts.effort), "xhigh")


def _is_off(thoughts: Thoughts) -> bool:
    return thoughts.is_on is False or (thoughts.is_on is None and thoughts.effort == "none")


def _is_budgeted(thoughts: Thoughts, renderer: Renderer) -> bool:
    return thoughts.effort is not None and not _knows_effort(renderer)


def _knows_effort(renderer: Renderer) -> bool:
    return re.search(rf"\b{EFFORT}\b", renderer.chat.tool_text) is not None
