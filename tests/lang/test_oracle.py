"""Random programs, in every way of running them, against a sequential oracle on the mock.

A program is a tree of steps. The oracle walks it with plain strings; the language does the same
with states, as a plain function and as an async one.
"""

import asyncio
import dataclasses
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import radixserve.lang as sgl

NAMES = st.sampled_from("abc")
CHOICES = st.lists(st.sampled_from(["x", "xy", "y", "zz"]), min_size=1, max_size=3)


class Boom(Exception):
    """Raised by a random program."""


class NoModel(Exception):
    """Raised by the mock where a prompt says so."""


def answer(prompt):
    """The model: a short text that every part of the prompt has a say in."""
    if "FAIL" in prompt:
        raise NoModel(prompt)
    return f"{zlib.crc32(prompt.encode()) % 1000}"


@dataclasses.dataclass
class Text:
    value: str


@dataclasses.dataclass
class Gen:
    name: str


@dataclasses.dataclass
class Select:
    name: str
    choices: list[str]


@dataclasses.dataclass
class Set:
    name: str


@dataclasses.dataclass
class Echo:
    """Append the value of a variable, if it has one."""

    name: str


@dataclasses.dataclass
class Scope:
    name: str
    steps: list


@dataclasses.dataclass
class Nested:
    steps: list


@dataclasses.dataclass
class Fork:
    branches: list[list]


@dataclasses.dataclass
class Raise:
    pass


LEAVES = st.one_of(
    st.builds(Text, st.sampled_from(["q", "r ", "春"])),
    st.builds(Gen, NAMES),
    st.builds(Select, NAMES, CHOICES),
    st.builds(Set, NAMES),
    st.builds(Echo, NAMES),
)
RARE = st.one_of(st.builds(Raise), st.builds(Text, st.just("FAIL")))


def blocks(children):
    steps = st.lists(children, max_size=4)
    return st.one_of(
        st.builds(Scope, NAMES, steps),
        st.builds(Nested, steps),
        st.builds(Fork, st.lists(steps, max_size=3)),
    )


STEPS = st.lists(st.recursive(LEAVES, blocks, max_leaves=12), max_size=6)
FAULTY = st.lists(st.recursive(LEAVES | RARE, blocks, max_leaves=10), max_size=6)


# ---- the oracle ----


@dataclasses.dataclass
class Oracle:
    text: str = ""
    variables: dict = dataclasses.field(default_factory=dict)
    own: dict = dataclasses.field(default_factory=dict)

    def set(self, name, value):
        self.variables[name] = self.own[name] = value

    def walk(self, steps):
        for step in steps:
            self.take(step)

    def take(self, step):
        match step:
            case Text(value):
                self.text += value
            case Gen(name):
                reply = answer(self.text)
                self.text += reply
                self.set(name, reply)
            case Select(name, choices):
                self.text += choices[0]  # every token is as likely: the first wins
                self.set(name, choices[0])
            case Set(name):
                self.set(name, len(self.text))
            case Echo(name):
                self.text += str(self.variables.get(name, ""))
            case Scope(name, steps):
                start = len(self.text)
                self.walk(steps)
                self.set(name, self.text[start:])
            case Nested(steps):
                self.walk(steps)
            case Fork(branches):
                self.fork(branches)
            case Raise():
                raise Boom

    def fork(self, branches):
        children = [Oracle(self.text, dict(self.variables)) for _ in branches]
        for child, steps in zip(children, branches):
            child.walk(steps)
        for name in dict.fromkeys(name for child in children for name in child.own):
            self.set(name, [child.own.get(name) for child in children])


# ---- the same with states ----


def append(s, step):
    match step:
        case Text(value):
            s += value
        case Gen(name):
            s += sgl.gen(name)
        case Select(name, choices):
            s += sgl.select(name, choices)
        case Raise():
            raise Boom


def walk(s, steps):
    for step in steps:
        match step:
            case Set(name):
                s[name] = len(s.text())
            case Echo(name):
                s += str(s[name]) if name in s else ""
            case Scope(name, inner):
                with s.var_scope(name):
                    walk(s, inner)
            case Nested(inner):
                s += program(inner)
            case Fork(branches):
                group = s.fork(len(branches))
                for child, inner in zip(group, branches):
                    walk(child, inner)
                group.join()
            case _:
                append(s, step)


async def awalk(s, steps):
    for step in steps:
        match step:
            case Set(name):
                s[name] = len(await s.text())
            case Echo(name):
                s += str(await s[name]) if await s.has(name) else ""
            case Scope(name, inner):
                with s.var_scope(name):
                    await awalk(s, inner)
            case Nested(inner):
                await native(s, inner)
            case Fork(branches):
                group = s.fork(len(branches))
                await asyncio.gather(
                    *[awalk(child, inner) for child, inner in zip(group, branches)]
                )
                await group.join()
            case _:
                append(s, step)


@sgl.function
def program(s, steps):
    walk(s, steps)


@sgl.function
async def native(s, steps):
    await awalk(s, steps)


def streamed(steps, mock):
    state = program.run(steps, backend=mock, stream=True)
    text = "".join(state.text_iter())
    assert text == state.text()
    return state


WAYS = {
    "run": lambda steps, mock: program.run(steps, backend=mock),
    "one thread": lambda steps, mock: program.run(steps, backend=mock, use_thread=False),
    "stream": streamed,
    "arun": lambda steps, mock: asyncio.run(program.arun(steps, backend=mock)),
    "native": lambda steps, mock: asyncio.run(native.arun(steps, backend=mock)),
    "batch": lambda steps, mock: program.run_batch([(steps,)], backend=mock)[0],
    "native batch": lambda steps, mock: native.run_batch([(steps,)] * 2, backend=mock)[1],
}


@pytest.mark.parametrize("way", WAYS)
@given(steps=STEPS)
@settings(max_examples=25)
def test_a_random_program_does_what_the_oracle_says(way, steps):
    oracle = Oracle()
    oracle.walk(steps)
    state = WAYS[way](steps, sgl.Mock(answer, is_instant=True, logprob=lambda *_: -1.0))
    assert state.text() == oracle.text
    for name in "abc":
        assert (name in state) == (name in oracle.variables)
        if name in state:
            assert state[name] == oracle.variables[name]


@pytest.mark.parametrize("way", WAYS)
@given(steps=FAULTY)
@settings(max_examples=25)
def test_a_random_program_fails_where_the_oracle_does(way, steps):
    """Which of two errors comes first depends on the order of forks, whether one comes does not."""
    oracle = Oracle()
    try:
        oracle.walk(steps)
    except (Boom, NoModel):
        with pytest.raises((Boom, NoModel)):
            WAYS[way](steps, sgl.Mock(answer, is_instant=True, logprob=lambda *_: -1.0))
        return
    state = WAYS[way](steps, sgl.Mock(answer, is_instant=True, logprob=lambda *_: -1.0))
    assert state.text() == oracle.text


@given(steps=STEPS)
@settings(max_examples=25)
def test_recorded_calls_replay_and_places_are_the_same(steps):
    """Calls are numbered alike however the program is run, so a recording fits all ways."""
    recorder = sgl.Recorder(sgl.Mock(answer, logprob=lambda *_: -1.0))
    first = program.run(steps, backend=recorder)
    for way in ("one thread", "arun", "native"):
        assert WAYS[way](steps, sgl.Replay(recorder)).text() == first.text()
