"""Which tokens of a bound output were choices, what else could have stood there, and where."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.grammar import alternatives
from radixserve.grammar.check import check, grammar
from radixserve.grammar.track import Track
from radixserve.native.places import places
from radixserve.wire.params import Constraint


def track_of(value: object, kind: str = "json_schema", **options: str) -> Track:
    text = value if isinstance(value, str) else json.dumps(value)
    found = Track.of(grammar(check(Constraint(kind=kind, value=text, **options))))
    assert found is not None
    return found


def state_of(track: Track, text: str):
    state = track.start.walk(text.encode())
    assert state is not None
    return state


def known(schema: object, before: str = "") -> list[str] | None:
    found = alternatives.values(state_of(track_of(schema), before))
    return None if found is None else [text.decode() for text in found]


# ---- alternatives ----


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ({"enum": ["red", "green", 3, None, True]}, ['"green"', '"red"', "3", "null", "true"]),
        ({"type": "boolean"}, ["false", "true"]),
        ({"anyOf": [{"const": "a"}, {"type": "null"}]}, ['"a"', "null"]),
        ({"enum": [1, 12, 123]}, ["1", "12", "123"]),
        ({"type": "integer", "minimum": 8, "maximum": 12}, ["10", "11", "12", "8", "9"]),
        ({"enum": ['a"b', "a\\", "在线"]}, ['"a\\"b"', '"a\\\\"', '"在线"']),
        ({"const": "x"}, ['"x"']),
        ({"type": "string", "pattern": "^(on|off)$"}, ['"off"', '"on"']),
        ({"type": "string"}, None),
        ({"type": "integer"}, None),
        ({"enum": [{"a": 1}, "b"]}, None),
        ({"enum": [str(i) for i in range(64)]}, sorted(f'"{i}"' for i in range(64))),
        ({"enum": [str(i) for i in range(65)]}, None),
    ],
)
def test_values_that_a_place_allows(schema, found):
    assert known(schema) == found


def test_what_came_before_counts():
    """The branch of a union that the text has taken decides what is left."""
    one = {"kind": {"const": "a"}, "size": {"enum": ["s", "m"]}}
    two = {"kind": {"const": "b"}, "size": {"enum": ["l", "xl"]}}
    schema = {
        "anyOf": [
            {"type": "object", "properties": each, "required": ["kind", "size"],
             "additionalProperties": False}
            for each in (one, two)
        ]
    }  # fmt: skip
    assert known(schema, '{"kind": ') == ['"a"', '"b"']
    assert known(schema, '{"kind": "a", "size": ') == ['"m"', '"s"']
    assert known(schema, '{"kind": "b", "size": ') == ['"l"', '"xl"']


def test_an_item_that_there_is():
    """That the list might have ended instead is no value of the item."""
    schema = {"type": "array", "items": {"enum": ["a", None, 1]}, "maxItems": 2}
    for before in ("[", '["a", '):
        assert known(schema, before) == ['"a"', "1", "null"]


def test_whole_texts():
    track = track_of('["yes", "yes please", "no"]', "choice")
    assert alternatives.texts(track.start) == [b"no", b"yes", b"yes please"]
    assert alternatives.texts(track_of("[a-z]*", "regex").start) is None
    assert alternatives.texts(track_of("(a|b){2}", "regex").start) == [b"aa", b"ab", b"ba", b"bb"]


# ---- choices ----


def test_tokens_that_were_choices():
    track = track_of('["yes", "yes please", "no"]', "choice")
    assert alternatives.choices(track.start, [b"y", b"es"]) == [True, False]
    assert alternatives.choices(track.start, [b"yes", b""]) == [True, True]  # it might go on
    assert alternatives.choices(track.start, [b"yes", b" please"]) == [True, True]
    assert alternatives.choices(track.start, [b"yes please", b""]) == [True, False]
    assert alternatives.choices(track.start, [b"no", b""]) == [True, False]


def test_what_is_fixed_is_no_choice():
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
              "additionalProperties": False}  # fmt: skip
    start = track_of(schema).start
    assert alternatives.choices(start, [b'{"ok": ', b"t", b"rue", b"}"]) == [
        False, True, False, False,
    ]  # fmt: skip
    assert alternatives.choices(start, [b'{"ok": tr', b"ue}"]) == [True, False]


# ---- places ----


def test_pointers_and_spans():
    text = '{"a": [1, {"b/c": "x\\"]"}], "~": {}, "é": [], "n": null}'.encode()
    found = {place.pointer: text[place.start : place.end].decode() for place in places(text)}
    assert found == {
        "": text.decode(), "/a": '[1, {"b/c": "x\\"]"}]', "/a/0": "1", "/a/1": '{"b/c": "x\\"]"}',
        "/a/1/b~1c": '"x\\"]"', "/~0": "{}", "/é": "[]", "/n": "null",
    }  # fmt: skip
    assert next(place.pointer for place in places(text)) == ""  # parents first
    assert {p.pointer for p in places(text) if p.is_number} == {"/a/0"}
    assert {p.pointer for p in places(text) if not p.is_leaf} == {"", "/a", "/a/1", "/~0", "/é"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner,
                                                               max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(JSON, st.booleans(), st.sampled_from([None, 1]))
def test_every_value_is_found(value, plain, indent):
    text = json.dumps(value, ensure_ascii=plain, indent=indent).encode("utf-8", "replace")
    value = json.loads(text)
    found = places(text)
    assert len(found) == count_of(value)
    for place in found:
        assert json.loads(text[place.start : place.end]) == pointed(value, place.pointer)


def count_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(count_of, value.values()))
    return 1 + sum(map(count_of, value)) if isinstance(value, list) else 1


def pointed(value, pointer: str):
    for name in pointer.split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        value = value[int(name)] if isinstance(value, list) else value[name]
    return value


@pytest.mark.parametrize("text", [b"", b"{", b'{"a": }', b"1 2", b"nul", b'"a'])
def test_what_is_no_json(text):
    with pytest.raises(ValueError, match=r"."):
        places(text)


def test_too_many_values():
    with pytest.raises(ValueError, match="more than"):
        places(json.dumps(list(range(5000))).encode())


def test_deep_values():
    text = b"[" * 500 + b"]" * 500
    assert len(places(text)) == 500


def test_random_draws_are_among_the_alternatives():
    rng = random.Random(3)
    for _ in range(20):
        words = rng.sample(["a", "ab", "b", "", "é", "ba", 1, 10, True, None], rng.randint(2, 6))
        found = known({"enum": words})
        assert found is not None
        assert sorted(found) == sorted(json.dumps(word, ensure_ascii=False) for word in words)
