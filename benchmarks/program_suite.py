"""Seven programs, each written twice: in the language, and for the openai client with asyncio.

Owns: the programs, what they are asked. Must not know: servers, clocks.

Both writings send the same messages and ask for outputs of the same lengths (min_tokens equals
max_tokens; greedy), so the prompts are the same to the token. The client's are written as one would
write them by hand for speed: what does not depend on each other is gathered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import radixserve as rs
from benchmarks.serving.prose import Prose

Message = dict[str, str]
Item = dict[str, str]
ASPECTS = ("clarity", "evidence", "originality", "style")
POINTS = 6
LEVELS, BRANCHES = 3, 4
STEPS = 5
TOOLS = ["search", "calculator", "calendar", "mail", "finish"]
TURNS = 4

RECORD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "subject": {"type": "string", "maxLength": 24},
        "place": {"enum": ["near", "behind", "under", "above", "inside", "none"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 999},
        "is_old": {"type": "boolean"},
    },
    "required": ["subject", "place", "count", "is_old"],
    "additionalProperties": False,
}


class Ask(Protocol):
    """One call of the openai client: the text that it gives, of `tokens` tokens. bound: what it is
    bound to, as fields of the request; then of at most so many tokens."""

    def __call__(
        self, messages: list[Message], tokens: int, bound: dict[str, Any] | None = None
    ) -> Awaitable[str]: ...


Client = Callable[..., Awaitable[list[str]]]


def said(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def answer(name: str, tokens: int) -> Any:
    return rs.assistant(rs.gen(name, max_tokens=tokens, min_tokens=tokens, temperature=0))


# ReAct: five steps of a thought and a choice of tool, each behind what the tool before has said


@rs.function
def react(s, tools, task, seen1, seen2, seen3, seen4):
    s += rs.system(tools)
    for number, seen in enumerate((task, seen1, seen2, seen3, seen4)):
        s += rs.user(f"It says: {seen}\nWhat next?" if number else seen)
        s += answer(f"thought{number}", 16)
        s += rs.user("Which tool?")
        s += rs.assistant(rs.gen(f"tool{number}", choice=TOOLS, max_tokens=8, temperature=0))


async def react_client(ask: Ask, tools: str, task: str, **seen: str) -> list[str]:
    messages, texts = [said("system", tools)], []
    for number in range(STEPS):
        told = f"It says: {seen[f'seen{number}']}\nWhat next?" if number else task
        messages.append(said("user", told))
        texts.append(await ask(messages, 16))
        messages += [said("assistant", texts[-1]), said("user", "Which tool?")]
        texts.append(await ask(messages, 8, {"extra_body": {"choice": TOOLS}}))
        messages.append(said("assistant", texts[-1]))
    return texts


# Tree of thought: three levels of four branches


def thought(branch: int, level: int) -> str:
    return f"Take way {branch + 1} and think step {level + 1}."


@rs.function
def tree(s, question):
    s += rs.user(question)
    s += answer("thought", 12)
    grow(s, 0)


def grow(s, level):
    if level == LEVELS:
        return
    for branch, child in enumerate(s.fork(BRANCHES)):
        child += rs.user(thought(branch, level))
        child += answer("thought", 12)
        grow(child, level + 1)


async def tree_client(ask: Ask, question: str) -> list[str]:
    messages = [said("user", question)]
    root = await ask(messages, 12)
    return [root, *await grow_client(ask, [*messages, said("assistant", root)], 0)]


async def grow_client(ask: Ask, messages: list[Message], level: int) -> list[str]:
    if level == LEVELS:
        return []

    async def child(branch: int) -> list[str]:
        own = [*messages, said("user", thought(branch, level))]
        text = await ask(own, 12)
        return [text, *await grow_client(ask, [*own, said("assistant", text)], level + 1)]

    grown = await asyncio.gather(*map(child, range(BRANCHES)))
    return [text for texts in grown for text in texts]


# Skeleton of thought: an outline, then its points side by side


@rs.function
def skeleton(s, question):
    s += rs.user(f"{question}\nName {POINTS} points.")
    s += answer("outline", 40)
    for number, child in enumerate(s.fork(POINTS), 1):
        child += rs.user(f"Write about point {number}.")
        child += answer("point", 32)


async def skeleton_client(ask: Ask, question: str) -> list[str]:
    messages = [said("user", f"{question}\nName {POINTS} points.")]
    outline = await ask(messages, 40)
    messages.append(said("assistant", outline))
    points = await asyncio.gather(
        *(
            ask([*messages, said("user", f"Write about point {number}.")], 32)
            for number in range(1, POINTS + 1)
        )
    )
    return [outline, *points]


# Few-shot judge: four aspects side by side, then a summary of the four and a grade


@rs.function
def judge(s, examples, essay):
    s += rs.system(examples)
    s += rs.user(f"The essay: {essay}")
    s += answer("first", 8)
    children = s.fork(len(ASPECTS))
    for aspect, child in zip(ASPECTS, children):
        child += rs.user(f"Judge its {aspect}.")
        child += answer("judgement", 16)
    told = "\n".join(child["judgement"] for child in children)
    s += rs.user(f"Judgements:\n{told}\nSum them up.")
    s += answer("summary", 24)
    s += rs.user("Now the grade.")
    s += answer("grade", 4)


async def judge_client(ask: Ask, examples: str, essay: str) -> list[str]:
    messages = [said("system", examples), said("user", f"The essay: {essay}")]
    first = await ask(messages, 8)
    messages.append(said("assistant", first))
    judgements = await asyncio.gather(
        *(ask([*messages, said("user", f"Judge its {aspect}.")], 16) for aspect in ASPECTS)
    )
    told = "\n".join(judgements)
    messages.append(said("user", f"Judgements:\n{told}\nSum them up."))
    summary = await ask(messages, 24)
    messages += [said("assistant", summary), said("user", "Now the grade.")]
    return [first, *judgements, summary, await ask(messages, 4)]


# Multi-turn chat


@rs.function
def chat(s, system, turn0, turn1, turn2, turn3):
    s += rs.system(system)
    for number, turn in enumerate((turn0, turn1, turn2, turn3)):
        s += rs.user(turn)
        s += answer(f"answer{number}", 24)


async def chat_client(ask: Ask, system: str, **turns: str) -> list[str]:
    messages, answers = [said("system", system)], []
    for number in range(TURNS):
        messages.append(said("user", turns[f"turn{number}"]))
        answers.append(await ask(messages, 24))
        messages.append(said("assistant", answers[-1]))
    return answers


# Retrieval: questions about documents that several questions share


@rs.function
def retrieval(s, documents, question):
    s += rs.system(documents)
    s += rs.user(question)
    s += answer("answer", 24)


async def retrieval_client(ask: Ask, documents: str, question: str) -> list[str]:
    return [await ask([said("system", documents), said("user", question)], 24)]


# Extraction: one record of each document


@rs.function
def extraction(s, instruction, document):
    s += rs.system(instruction)
    s += rs.user(document)
    s += rs.assistant(rs.gen("record", json_schema=RECORD, max_tokens=48, temperature=0))


async def extraction_client(ask: Ask, instruction: str, document: str) -> list[str]:
    form = {"type": "json_schema", "json_schema": {"name": "record", "schema": RECORD}}
    messages = [said("system", instruction), said("user", document)]
    return [await ask(messages, 48, {"response_format": form})]


@dataclass(frozen=True, slots=True)
class Workload:
    """items(prose, quick) gives the arguments of each run. names: of the run's variables that are
    compared with the client's texts: all of them in its order, or the first, or first and last.
    goal: how many times as fast as the client compiled runs are to be."""

    name: str
    program: Any
    client: Client
    items: Callable[[Prose, bool], list[Item]]
    names: tuple[str, ...]
    goal: float


def react_items(prose: Prose, quick: bool) -> list[Item]:
    tools = f"You may call tools. {prose.text(240)}"
    return [
        {"tools": tools, "task": prose.text(30)}
        | {f"seen{number}": prose.text(30) for number in range(1, STEPS)}
        for _ in range(4 if quick else 8)
    ]


def questions(prose: Prose, count: int) -> list[Item]:
    return [{"question": prose.text(60)} for _ in range(count)]


def judge_items(prose: Prose, quick: bool) -> list[Item]:
    examples = f"You judge essays. {prose.text(300)}"
    return [{"examples": examples, "essay": prose.text(100)} for _ in range(4 if quick else 8)]


def chat_items(prose: Prose, quick: bool) -> list[Item]:
    system = f"You are helpful. {prose.text(150)}"
    return [
        {"system": system} | {f"turn{number}": prose.text(40) for number in range(TURNS)}
        for _ in range(4 if quick else 8)
    ]


def retrieval_items(prose: Prose, quick: bool) -> list[Item]:
    groups = [f"Answer from this: {prose.text(400)}" for _ in range(2 if quick else 4)]
    return [{"documents": text, "question": prose.text(20)} for text in groups for _ in range(6)]


def extraction_items(prose: Prose, quick: bool) -> list[Item]:
    instruction = f"Read the record out of the text. {prose.text(120)}"
    count = 24 if quick else 200
    return [{"instruction": instruction, "document": prose.text(70)} for _ in range(count)]


STEP_NAMES = tuple(f"{kind}{number}" for number in range(STEPS) for kind in ("thought", "tool"))
ANSWER_NAMES = tuple(f"answer{number}" for number in range(TURNS))

WORKLOADS = (
    Workload("react", react, react_client, react_items, STEP_NAMES, 1.1),
    Workload(
        "tree", tree, tree_client, lambda p, q: questions(p, 1 if q else 2), ("thought",), 1.1
    ),
    Workload(
        "skeleton",
        skeleton,
        skeleton_client,
        lambda p, q: questions(p, 2 if q else 4),
        ("outline",),
        1.1,
    ),
    Workload("judge", judge, judge_client, judge_items, ("first", "grade"), 1.1),
    Workload("chat", chat, chat_client, chat_items, ANSWER_NAMES, 1.1),
    Workload("retrieval", retrieval, retrieval_client, retrieval_items, ("answer",), 0.97),
    Workload("extraction", extraction, extraction_client, extraction_items, ("record",), 0.97),
)
