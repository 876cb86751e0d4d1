"""Compiled programs in batches, by themselves, from the cookbook, and when something breaks."""

import asyncio
import itertools
import weakref

import pytest

import radixserve.lang as sgl
from tests.lang import test_cookbook as cookbook


@sgl.function
def ask(s, document, question):
    s += f"[{document}] {question} " + sgl.gen("x")
    return f"{s['x']}!"


ITEMS = [{"document": f"doc {i % 3}", "question": f"q{i}"} for i in range(12)]


def first_prompts(mock):
    return ["".join(part.get("text", "") for part in call["input"]) for call in mock.calls]


# ---- batches ----


@pytest.mark.parametrize("way", ["list", "generator", "loop"])
def test_a_batch_begins_in_the_order_of_prefixes_and_answers_in_its_own(way):
    mock, compiled = sgl.Mock(lambda prompt: prompt[-4:], is_instant=True), ask.compile()
    options = {"backend": mock, "num_threads": 12}
    if way == "loop":

        async def collect():
            return [state async for state in compiled.arun_batch(ITEMS, **options)]

        states = asyncio.run(collect())
    else:
        states = list(compiled.run_batch(ITEMS, generator_style=way == "generator", **options))
    assert [state["x"].split()[-1] for state in states] == [item["question"] for item in ITEMS]
    prompts = first_prompts(mock)
    assert prompts == sorted(prompts)
    assert prompts != [f"[{item['document']}] {item['question']} " for item in ITEMS]
    plain = sgl.Mock(lambda prompt: prompt[-4:], is_instant=True)
    ask.run_batch(ITEMS, backend=plain, num_threads=1)
    assert first_prompts(plain) == [f"[{each['document']}] {each['question']} " for each in ITEMS]


def test_only_a_bounded_number_is_put_in_order():
    taken = itertools.count()
    items = ({"document": f"{-i}", "question": str(next(taken))} for i in range(10_000))
    states = ask.compile().run_batch(
        items, backend=sgl.Mock(lambda _: "r", is_instant=True), generator_style=True, num_threads=8
    )
    seen = [next(states).text() for _ in range(100)]
    assert [text.split("] ")[1].split(" ")[0] for text in seen] == [str(i) for i in range(100)]
    assert next(taken) <= 100 + 2 * 8 + 1
    states.close()


def test_a_long_batch_keeps_no_state():
    states = ask.compile().run_batch(
        ({"document": "d", "question": str(i)} for i in range(400)),
        backend=sgl.Mock(lambda _: "r", is_instant=True),
        generator_style=True,
        num_threads=4,
    )
    alive = []
    for i, state in enumerate(states):
        alive.append(weakref.ref(state))
        del state
        assert sum(ref() is not None for ref in alive[-50:]) <= 3, i


def test_a_checkpoint_of_a_compiled_batch(tmp_path):
    compiled, mock = ask.compile(), sgl.Mock(lambda prompt: prompt[-4:], is_instant=True)
    path = tmp_path / "kept"
    first = compiled.run_batch(ITEMS[:5], backend=mock, checkpoint=path)
    again = compiled.run_batch(ITEMS, backend=mock, checkpoint=path)
    assert [state.text() for state in again[:5]] == [state.text() for state in first]
    assert len(mock.calls) == len(ITEMS)


# ---- by itself ----


def counted(body):
    """The program of `body`, compiled by itself, and how often its function has run."""
    runs = []

    def program(s, word, often=1):
        runs.append(word)
        return body(s, word, often)

    return sgl.function(compile=True)(program), runs


def test_a_program_compiles_itself_once_for_each_constant():
    def body(s, word, often):
        for _ in range(often):
            s += f"{word} " + sgl.gen("x")
        return s["x"]

    program, runs = counted(body)
    mock = sgl.Mock(lambda prompt: prompt[-2:], is_instant=True)
    for word, often in (("a", 1), ("b", 1), ("c", 2), ("d", 2)):
        state = program.run(word, often=often, backend=mock)
        assert state.ret_value == f"{word} "
        assert len(state.explain().calls) == often
    assert len(runs) == 4  # twice for each
    states = program.run_batch([("x", 2), ("y", 1), ("x", 1)], backend=mock)
    assert [state.ret_value for state in states] == ["x ", "y ", "x "]
    assert [len(state.explain().calls) for state in states] == [2, 1, 1]
    assert asyncio.run(program.arun("z", backend=mock)).ret_value == "z "
    assert len(runs) == 6  # the default is not said, so that is another form


def test_a_dynamic_program_is_interpreted():
    def body(s, word, often):
        s += word + sgl.gen("x")
        return len(s["x"])

    program, runs = counted(body)
    mock = sgl.Mock(lambda prompt: "abc", is_instant=True)
    assert [program.run("a", backend=mock).ret_value for _ in range(3)] == [3, 3, 3]
    assert runs[-3:] == ["a", "a", "a"]
    assert len(runs) <= 5


def test_arguments_that_are_no_plain_values_are_interpreted():
    program, runs = counted(lambda s, word, often: s.set_var("x", often))
    thing = object()
    assert program.run("a", often=thing, backend=sgl.Mock())["x"] is thing
    assert runs == ["a"]


def test_no_more_than_so_many_forms_are_kept():
    program, runs = counted(lambda s, word, often: s.set_var("x", often))
    for often in range(30):
        assert program.run("a", often=often, backend=sgl.Mock())["x"] == often
    assert len(runs) == 2 * 16 + 14


def test_nothing_is_compiled_unasked():
    runs = []

    @sgl.function
    def program(s, word):
        runs.append(word)
        s += word

    program.run("a", backend=sgl.Mock())
    program.run("b", backend=sgl.Mock())
    assert runs == ["a", "b"]


# ---- the cookbook ----

# A module's program, and arguments for it.
EXAMPLES = {
    "few_shot_labels": ("label", {"text": "Is there parking?"}),
    "typed_records": ("read_order", {"text": "three lemons"}),
    "judge": ("judge", {"text": "Dear guests, we are closed."}),
    "shared_documents": ("ask", {"document": "town", "question": "When is the fair?"}),
    "long_batch": ("headline", {"text": "the herring fair"}),
}
FOLDED = {"document"}  # looked up in a table
OTHERS = {  # what they look at
    "react_agent": "s['action'] is tested",
    "tree_of_thought": "made a number",
    "skeleton_of_thought": ".strip of s['point0'] is used",
    "self_consistency": "is tested",
    "tested_program": "s['urgent'] is tested",
    "async_service": "s['answer'] is tested",
    "tools": "s['step'].calls is tested",
}
NAMES = {
    "react_agent": "agent",
    "tree_of_thought": "solve",
    "skeleton_of_thought": "answer",
    "self_consistency": "vote",
    "tested_program": "triage",
    "async_service": "reply",
    "tools": "agent",
}


def test_every_example_of_the_cookbook_is_here():
    assert {*EXAMPLES, *OTHERS} == set(cookbook.CHECKS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_both_ways(tiny_engine, name):
    program, args = EXAMPLES[name]
    program = getattr(cookbook.load(cookbook.FOLDER / f"{name}.py"), program)
    given = {key: value if key in FOLDED else sgl.placeholder for key, value in args.items()}
    compiled = program.compile(**given)
    options = {"backend": tiny_engine, "temperature": 0, "max_new_tokens": 8}
    expected = program.run(**args, **options)
    rest = {key: value for key, value in args.items() if key not in FOLDED}
    state = compiled.run(**rest, **options)
    assert state.text() == expected.text()
    assert repr(state.ret_value) == repr(expected.ret_value)


@pytest.mark.parametrize("name", OTHERS)
def test_an_example_says_why_it_is_dynamic(name):
    program = getattr(cookbook.load(cookbook.FOLDER / f"{name}.py"), NAMES[name])
    with pytest.raises(sgl.DynamicProgram) as caught:
        program.compile()
    assert OTHERS[name] in caught.value.reason
    assert caught.value.filename.endswith(f"{name}.py")
