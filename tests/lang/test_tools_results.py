"""Results of tools: what they are written as, and what is no result."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import pathlib
import uuid

import pydantic
import pytest

import radixserve.lang as rs


def look_up(city: str) -> str:
    """How many people live in a city."""
    return f"many in {city}"


async def later(city: str) -> str:
    return city.upper()


def call():
    return rs.ToolCall("look_up", {"city": "Rome"})


class Size(enum.Enum):
    BIG = "big"


class Where(pydantic.BaseModel):
    city: str
    kind: str = "town"


def test_results_are_texts_or_json(run):
    pair = dataclasses.make_dataclass("Pair", ["a"])
    told = ["a", 3, None, {"a": [1]}, Where(city="R"), pair(1), [pair([Where(city="R"), Size.BIG])]]

    def body(s):
        s += rs.user("q") + rs.gen("x", tools=[look_up])
        for result in told:
            s += rs.tool(s["x"].calls[0].id, result)
        s += rs.tool(s["x"].calls[0], "one " + rs.Turn("two"))

    state = run(body, rs.Mock([rs.Turn("", [call()])]))
    contents = [each["content"] for each in state.messages()[2:]]
    place = '{"city": "R", "kind": "town"}'
    deep = f'[{{"a": [{place}, "big"]}}]'
    assert contents == ["a", "3", "null", '{"a": [1]}', place, '{"a": 1}', deep, "one two"]


@pytest.mark.parametrize(
    ("result", "written"),
    [
        (datetime.date(2026, 12, 1), '"2026-12-01"'),
        (datetime.datetime(2026, 12, 1, 3, 4, tzinfo=datetime.UTC), '"2026-12-01T03:04:00+00:00"'),
        ([datetime.time(3, 4)], '["03:04:00"]'),
        ({"price": decimal.Decimal("10.50")}, '{"price": "10.50"}'),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (pathlib.PurePosixPath("a/b"), '"a/b"'),
    ],
)
def test_values_with_one_usual_form_are_results(run, result, written):
    def body(s):
        s += rs.user("q") + rs.gen("x", tools=[look_up])
        s += rs.tool(s["x"].calls[0], result)

    assert run(body, rs.Mock([rs.Turn("", [call()])])).messages()[-1]["content"] == written


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (float("nan"), "Out of range"),
        (datetime.timedelta(1), "timedelta is no JSON"),
        (b"a", "bytes is no JSON"),
        ({"a": [float("inf")]}, "Out of range"),
        (Where, "is no JSON"),
        ([object()], "object is no JSON"),
    ],
)
def test_what_is_no_json_is_no_result(result, words):
    with pytest.raises(TypeError, match=f"a text or JSON: .*{words}"):
        rs.tool("c", result)


def test_the_result_of_an_async_tool_is_awaited():
    with pytest.raises(TypeError, match=r"await call.run\(\)"):
        rs.tool("c", later("Rome"))
