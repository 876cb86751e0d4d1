"""Random programs: interpreted, compiled and a sequential oracle come to the same on the mock."""

import asyncio
import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import radixserve.lang as sgl
from tests.lang import test_oracle as plain
from tests.lang.test_compiled import bodies, everything
from tests.lang.test_oracle import CHOICES, NAMES, Boom, Fork, NoModel, Raise, Scope, Text, answer


@dataclasses.dataclass
class Set:
    """A constant, or the value of another variable where it has one."""

    name: str
    other: str


@dataclasses.dataclass
class Echo:
    """Append what a variable holds, lists spelt out."""

    name: str


@dataclasses.dataclass
class Quote:
    """Append the text so far once more."""


LEAVES = st.one_of(
    st.builds(Text, st.sampled_from(["q", "r ", "春", ""])),
    st.builds(plain.Gen, NAMES),
    st.builds(plain.Select, NAMES, CHOICES),
    st.builds(Set, NAMES, NAMES),
    st.builds(Echo, NAMES),
    st.builds(Quote),
)
RARE = st.one_of(st.builds(Raise), st.builds(Text, st.just("FAIL")))


def blocks(children):
    steps = st.lists(children, max_size=4)
    return st.one_of(
        st.builds(Scope, NAMES, steps),
        st.builds(plain.Nested, steps),
        st.builds(Fork, st.lists(steps, max_size=3)),
    )


STEPS = st.lists(st.recursive(LEAVES, blocks, max_leaves=12), max_size=6)
FAULTY = st.lists(st.recursive(LEAVES | RARE, blocks, max_leaves=10), max_size=6)


def spelt(value):
    """Not str(): a list's own would look at the values in it."""
    if type(value) is list:
        return "[" + ",".join(f"{spelt(each)}" for each in value) + "]"
    return f"{value}"


class Oracle(plain.Oracle):
    def take(self, step):
        match step:
            case Set(name, other):
                self.set(name, self.variables.get(other, "none"))
            case Echo(name):
                self.text += spelt(self.variables.get(name, ""))
            case Quote():
                self.text += f"<{self.text}>"
            case Fork(branches):
                children = [Oracle(self.text, dict(self.variables)) for _ in branches]
                for child, steps in zip(children, branches):
                    child.walk(steps)
                for name in dict.fromkeys(name for child in children for name in child.own):
                    self.set(name, [child.own.get(name) for child in children])
            case _:
                super().take(step)


def walk(s, steps):
    for step in steps:
        match step:
            case Set(name, other):
                has = other in s
                s[name] = s[other] if has else "none"
            case Echo(name):
                s += spelt(s[name]) if name in s else ""
            case Quote():
                s += f"<{s.text()}>"
            case Scope(name, inner):
                with s.var_scope(name):
                    walk(s, inner)
            case plain.Nested(inner):
                s += program(inner)
            case Fork(branches):
                group = s.fork(len(branches))
                for child, inner in zip(group, branches):
                    walk(child, inner)
                group.join()
            case _:
                plain.append(s, step)


async def awalk(s, steps):
    for step in steps:
        match step:
            case Set(name, other):
                s[name] = await s[other] if await s.has(other) else "none"
            case Echo(name):
                s += spelt(await s[name]) if await s.has(name) else ""
            case Quote():
                s += f"<{await s.text()}>"
            case Scope(name, inner):
                with s.var_scope(name):
                    await awalk(s, inner)
            case plain.Nested(inner):
                await native(s, inner)
            case Fork(branches):
                group = s.fork(len(branches))
                for child, inner in zip(group, branches):
                    await awalk(child, inner)
                await group.join()
            case _:
                plain.append(s, step)


@sgl.function
def program(s, steps):
    walk(s, steps)


@sgl.function
async def native(s, steps):
    await awalk(s, steps)


def kept(compiled, backend):
    return sgl.Compiled.from_json(compiled.to_json()).run(backend=backend)


WAYS = {
    "run": lambda compiled, backend: compiled.run(backend=backend),
    "arun": lambda compiled, backend: asyncio.run(compiled.arun(backend=backend)),
    "batch": lambda compiled, backend: compiled.run_batch([{}] * 2, backend=backend)[1],
    "kept": kept,
}


def mock():
    return sgl.Mock(answer, is_instant=True, logprob=lambda *_: -1.0)


@pytest.mark.parametrize("way", WAYS)
@given(steps=STEPS)
@settings(max_examples=25)
def test_a_compiled_program_does_what_the_oracle_says(way, steps):
    oracle = Oracle()
    oracle.walk(steps)
    compiled = program.compile(steps)
    state = WAYS[way](compiled, mock())
    assert state.text() == oracle.text
    for name in "abc":
        assert (name in state) == (name in oracle.variables)
        if name in state:
            assert state[name] == oracle.variables[name]
    assert native.compile(steps).graph["steps"] == compiled.graph["steps"]


@given(steps=STEPS)
@settings(max_examples=40)
def test_interpreted_and_compiled_make_the_same_calls(steps):
    here, there = mock(), mock()
    expected = program.run(steps, backend=here)
    state = program.compile(steps).run(backend=there)
    assert everything(state) == everything(expected)
    assert bodies(here) == bodies(there)


def has_raise(steps):
    return "Raise()" in repr(steps)


@pytest.mark.parametrize("way", WAYS)
@given(steps=FAULTY)
@settings(max_examples=25)
def test_a_compiled_program_fails_where_the_oracle_does(way, steps):
    oracle = Oracle()
    try:
        oracle.walk(steps)
        error = None
    except (Boom, NoModel) as raised:
        error = raised
    if has_raise(steps):  # it is raised whatever the model says
        with pytest.raises(sgl.DynamicProgram) as caught:
            program.compile(steps)
        assert isinstance(caught.value.__cause__, Boom)
        return
    compiled = program.compile(steps)
    if error is None:
        assert WAYS[way](compiled, mock()).text() == oracle.text
        return
    with pytest.raises(NoModel):
        WAYS[way](compiled, mock())
