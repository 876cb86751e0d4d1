"""What a join makes of the branches of a fork.

Owns: which failure is raised, how the variables of children become those of their parent. Must not
know: how branches are worked off.
"""

from __future__ import annotations

from radixserve.lang.branch import Branch
from radixserve.lang.interpreter import Interpreter
from radixserve.lang.ir import Assign


def failures_of(children: list[Branch]) -> None:
    """Raise the failure of the first of the settled children that failed; none goes unseen."""
    failures = [child.failure for child in children if child.failure is not None]
    failures = [failure for failure in failures if not failure.is_wanted]
    for failure in failures:
        failure.was_seen = True
    if failures:
        failures[0].reveal()


def gather(children: list[Branch]) -> list[Assign]:
    """Variables set in any settled child since the fork, each as the list of the children's values.

    Raises the failure of the first that failed.
    """
    failures_of(children)
    own = {name: None for child in children for name in child.interpreter.own}
    return [_gather_one(name, [child.interpreter for child in children]) for name in own]


def _gather_one(name: str, children: list[Interpreter]) -> Assign:
    values = [each.variables[name] if name in each.own else None for each in children]
    metas = [each.metas.get(name) if name in each.own else None for each in children]
    return Assign(name, values, metas if any(meta is not None for meta in metas) else None)
