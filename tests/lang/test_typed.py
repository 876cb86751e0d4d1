"""gen(schema=..): the variable is an object of a Python type."""

import dataclasses
import enum
import typing
from typing import Annotated, Literal

import pydantic
import pytest

import radixserve.lang as sgl


class Town(pydantic.BaseModel):
    name: Annotated[str, pydantic.Field(min_length=1, max_length=8)]
    people: Annotated[int, pydantic.Field(ge=0, le=9000)]
    twin: "Town | None" = None


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.0


class Card(typing.TypedDict):
    title: str
    tags: list[str]


class Loose(typing.TypedDict, total=False):
    title: typing.Required[str]
    point: Point


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


def is_card(value):
    return set(value) == {"title", "tags"} and all(isinstance(tag, str) for tag in value["tags"])


KINDS = [
    (Town, lambda v: isinstance(v, Town) and 0 <= v.people <= 9000 and 1 <= len(v.name) <= 8),
    (Point, lambda v: isinstance(v, Point) and isinstance(v.x, int)),
    (Card, is_card),
    (Loose, lambda v: isinstance(v["title"], str)),
    (list[Card], lambda v: isinstance(v, list) and all(map(is_card, v))),
    (Literal["yes", "no"], lambda v: v in ("yes", "no")),
    (Literal[1, "two", None], lambda v: v in (1, "two", None)),
    (Mood, lambda v: isinstance(v, Mood)),
    (Level, lambda v: isinstance(v, Level)),
    (int, lambda v: type(v) is int),
    (float, lambda v: type(v) is float),
    (bool, lambda v: type(v) is bool),
    (str, lambda v: type(v) is str),
    (Annotated[str, pydantic.Field(max_length=3)], lambda v: len(v) <= 3),
    (Annotated[str, pydantic.StringConstraints(pattern="^[ab]{2}$")], lambda v: set(v) <= {*"ab"}),
    (Annotated[int, pydantic.Field(gt=3, lt=6)], lambda v: v in (4, 5)),
    (list[int], lambda v: all(type(each) is int for each in v)),
    (Annotated[list[Mood], pydantic.Field(min_length=2, max_length=2)], lambda v: len(v) == 2),
    (int | str, lambda v: type(v) in (int, str)),
    (Point | None, lambda v: v is None or isinstance(v, Point)),
    (dict[str, Point] | list[Point | Town], lambda v: isinstance(v, dict | list)),
]


@pytest.mark.parametrize(("kind", "fits"), KINDS, ids=[str(kind) for kind, _ in KINDS])
def test_the_variable_is_the_object(run, kind, fits):
    """The mock writes some text that the constraint allows."""

    def body(s):
        s += "q" + sgl.gen("x", schema=kind)

    for seed in range(12):
        state = run(body, sgl.Mock(seed=seed), max_new_tokens=9999)
        assert fits(state["x"])


def test_several_outputs_are_a_list_of_objects(run):
    def body(s):
        s += "q" + sgl.gen("x", schema=Point, n=3)

    assert [type(each) for each in run(body, sgl.Mock())["x"]] == [Point] * 3


def test_the_state_goes_on_from_the_text(run):
    def body(s):
        s += "q" + sgl.gen("x", schema=Point) + "!"
        assert s["x"] == Point(3, 0.5)

    state = run(body, sgl.Mock(['{"x": 3, "y": 0.5}']))
    assert state.text() == 'q{"x": 3, "y": 0.5}!'
    assert state.explain().calls[0].constraint == "json_schema"


def test_what_is_sent():
    mock = sgl.Mock()

    @sgl.function
    def program(s):
        s += sgl.gen("x", schema=Town) + sgl.gen("y", schema=Mood)
        s += sgl.gen("z", schema=int, whitespace="bounded")

    program.run(backend=mock)
    town, mood, whole = (call["sampling_params"] for call in mock.calls)
    assert town["json_schema"]["$defs"]["Town"]["additionalProperties"] is False
    assert mood["choice"] == ["good", "bad"]
    assert (whole["json_schema"], whole["whitespace"]) == ({"type": "integer"}, "bounded")


@pytest.mark.parametrize(
    ("kind", "text"),
    [(Point, '{"x": "far"}'), (Point, '{"x": 1'), (Mood, "so so"), (int, "1.5"), (bool, "maybe")],
)
def test_a_text_that_is_no_object_says_so(run, kind, text):
    def body(s):
        s += "q" + sgl.gen("x", schema=kind)
        with pytest.raises(sgl.TypedOutputError) as caught:
            s["x"]
        return caught.value

    error = run(body, sgl.Mock([text])).ret_value
    assert error.text == text
    assert kind.__name__ in str(error)


def test_a_text_cut_short_names_the_limit(run):
    def body(s):
        s += "q" + sgl.gen("x", schema=Point, max_tokens=5)
        with pytest.raises(sgl.TypedOutputError) as caught:
            s["x"]
        return caught.value.__notes__

    notes = run(body, sgl.Mock(['{"x": 3, "y": 0.5}'], cuts=True)).ret_value
    assert any("max_tokens" in note for note in notes)


@pytest.mark.parametrize(
    "other",
    [{"regex": "a"}, {"json_schema": {}}, {"choices": ["a"]}, {"dtype": int}, {"choice": ["a"]}],
)
def test_a_type_excludes_other_constraints(other):
    with pytest.raises(ValueError, match=f"schema and {next(iter(other))}"):
        sgl.gen("x", schema=int, **other)


class Odd:
    pass


@pytest.mark.parametrize("kind", [Odd, list[Odd], "Nowhere"])
def test_what_has_no_schema_raises_at_once(kind):
    with pytest.raises(TypeError, match="schema="):
        sgl.gen("x", schema=kind)


@pytest.mark.parametrize("kind", [Point, Mood, Annotated[int, pydantic.Field(ge=1, le=9)]])
@pytest.mark.parametrize("place", ["tiny_engine", "tiny_server"])
def test_a_real_model_writes_the_object(request, closing, kind, place):
    backend = request.getfixturevalue(place)
    if isinstance(backend, str):
        backend = closing(sgl.RuntimeEndpoint(backend))

    @sgl.function
    def program(s):
        s += "the quick brown fox" + sgl.gen("x", schema=kind, max_tokens=64, temperature=0)

    value = program.run(backend=backend)["x"]
    assert isinstance(value, kind if isinstance(kind, type) else int)
