"""The workloads W0 to W8: which prompts, how long the outputs, what waits for what.

Owns: their shapes. Must not know: servers, HTTP, time.

Every prompt is a list of token ids that is fixed before the run. Where a prompt goes on from an
earlier answer (W3, W4, W5) it goes on from synthetic text of the answer's length instead: two
servers in bfloat16 part ways after some tokens, and would then be asked different things. So the
ids of an answer are computed again by every side when they come back as part of a prompt; that a
server may find its own output in its cache is not measured here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .prose import Prose


@dataclass(frozen=True, slots=True)
class Call:
    """prompt: [n] token ids. tokens: to generate. after: the calls, by index, that must have been
    answered before this one is sent. schema: of the answer, which then has at most `tokens` and
    ends by itself; None: exactly `tokens` of anything."""

    prompt: tuple[int, ...]
    tokens: int
    after: tuple[int, ...] = ()
    schema: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """title: what it stands for. at_once: calls under way at most. build: its calls in the order
    in which they are sent, of prose that is new in each round; whole, or a small part of it for a
    quick look."""

    title: str
    at_once: int
    build: Callable[[Prose, bool], list[Call]]


def _single_stream(prose: Prose, is_quick: bool) -> list[Call]:
    return [_call(prose.tokens(64), 32 if is_quick else 128)]


def _shared_system_prompt(prose: Prose, is_quick: bool) -> list[Call]:
    groups, each = (2, 4) if is_quick else (8, 8)
    calls = []
    for _ in range(groups):
        system = prose.tokens(512)
        calls += [_call(system + prose.tokens(32), 32) for _ in range(each)]
    return [calls[i] for i in prose.shuffled(range(len(calls)))]


def _few_shot(prose: Prose, is_quick: bool) -> list[Call]:
    examples = prose.tokens(768)
    return [_call(examples + prose.tokens(48), 1) for _ in range(16 if is_quick else 64)]


def _multi_turn(prose: Prose, is_quick: bool) -> list[Call]:
    chats, turns = (4, 2) if is_quick else (8, 4)
    histories: list[list[int]] = [[] for _ in range(chats)]
    calls: list[Call] = []
    for turn in range(turns):
        for chat, history in enumerate(histories):
            history += prose.tokens(96)
            after = ((turn - 1) * chats + chat,) if turn else ()
            calls.append(_call(history, 32, after))
            history += prose.tokens(32)
    return calls


def _tree(prose: Prose, is_quick: bool) -> list[Call]:
    """Each question has 4 thoughts, each thought 4 more: 20 calls. A thought begins with 8 tokens
    of its own, so that brothers differ."""
    questions, branches = (2, 2) if is_quick else (8, 4)
    calls: list[Call] = []
    level: list[tuple[list[int], tuple[int, ...]]]
    level = [(prose.tokens(128), ()) for _ in range(questions)]
    for _ in range(2):
        grown: list[tuple[list[int], tuple[int, ...]]] = []
        for text, after in level:
            for _ in range(branches):
                thought = text + prose.tokens(8)
                grown.append((thought + prose.tokens(24), (len(calls),)))
                calls.append(_call(thought, 24, after))
        level = grown
    return calls


def _agents(prose: Prose, is_quick: bool) -> list[Call]:
    """All agents have one preamble. A step asks twice, with 48 new tokens each, and goes on from
    the first answer when both have come."""
    agents, steps = (2, 2) if is_quick else (4, 6)
    preamble = prose.tokens(700)
    texts = [list(preamble) for _ in range(agents)]
    waits: list[tuple[int, ...]] = [()] * agents
    calls: list[Call] = []
    for _ in range(steps):
        for agent in range(agents):
            text, after = texts[agent], waits[agent]
            waits[agent] = (len(calls), len(calls) + 1)
            forks = [text + prose.tokens(48) for _ in range(2)]
            calls += [_call(fork, 32, after) for fork in forks]
            texts[agent] = forks[0] + prose.tokens(32)
    return calls


RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "place": {"type": "string", "maxLength": 20},
        "kind": {"enum": ["letter", "journey", "purchase", "other"]},
        "year": {"type": "integer", "minimum": 1900, "maximum": 2030},
        "answered": {"type": "boolean"},
    },
    "required": ["name", "place", "kind", "year", "answered"],
    "additionalProperties": False,
}


def _extraction(prose: Prose, is_quick: bool) -> list[Call]:
    instruction = prose.tokens(600)
    n = 8 if is_quick else 48
    return [Call((*instruction, *prose.tokens(120)), 64, schema=RECORD) for _ in range(n)]


def _nothing_shared(prose: Prose, is_quick: bool) -> list[Call]:
    n, tokens = (8, 16) if is_quick else (32, 64)
    return [_call(prose.tokens(512), tokens) for _ in range(n)]


def _call(prompt: Sequence[int], tokens: int, after: tuple[int, ...] = ()) -> Call:
    return Call(tuple(prompt), tokens, after)


WORKLOADS = {
    "W0": Workload("single stream", 1, _single_stream),
    "W1": Workload("shared system prompt", 16, _shared_system_prompt),
    "W2": Workload("few-shot, one token", 16, _few_shot),
    "W3": Workload("multi-turn", 8, _multi_turn),
    "W4": Workload("tree", 16, _tree),
    "W5": Workload("agents", 8, _agents),
    "W6": Workload("JSON extraction", 8, _extraction),
    "W7": Workload("nothing shared", 8, _nothing_shared),
    "W8": Workload("W1 under pressure", 16, _shared_system_prompt),
}

# The prompts and outputs of W1, shared prefixes once, are 8 x 512 + 64 x (32 + 32) = 8,192 tokens.
W8_NOTE = (
    "W8 is W1 with a KV pool of 2,048 tokens, a quarter of what it touches. Start the servers "
    "for W8 alone, with: radixserve --kv-tokens 2048; vLLM --num-gpu-blocks-override 17 "
    "--max-model-len 1024 (blocks of 128 tokens, one of them not used); llama.cpp -np 3 "
    "-c 2048 --cache-ram 0 (it fails requests that do not fit beside each other)"
)


def sharable(calls: Sequence[Call]) -> int:
    """Prompt tokens that need not be computed when every shared prefix is computed once.

    Of each prompt one token always is, to have something to sample from.
    """
    prompts = sorted(call.prompt for call in calls)
    total = 0
    for before, prompt in itertools.pairwise(prompts):
        common = next((i for i, (a, b) in enumerate(zip(before, prompt)) if a != b), None)
        shared = min(len(before), len(prompt)) if common is None else common
        total += min(shared, len(prompt) - 1)
    return total
