"""Programs whose texts are bound, on a real engine with a random model (case F07)."""

from __future__ import annotations

import json
import re

import pytest

import radixserve as rs

SEASONS = "<(春天|夏天|冬天快乐)>"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Ada 🦙", "é"]}, "n": {"type": "integer", "maximum": 99}},
    "required": ["name", "n"],
    "additionalProperties": False,
}


def run(body, engine, **options):
    return rs.function(body).run(backend=engine, temperature=0.8, **options)


@pytest.mark.parametrize("stream", [False, True])
def test_f07_characters_of_several_tokens_are_forced_whole(engine, stream):
    def program(s):
        s += "the season: " + rs.gen("season", regex=SEASONS)
        s += " ni" + rs.gen("vowels", regex="(é|è)+", max_tokens=9)

    state = run(program, engine, stream=stream)
    if stream:
        assert "".join(state.text_iter("season")) == state["season"]
    assert re.fullmatch(SEASONS, state["season"])
    assert re.fullmatch("(é|è)+", state["vowels"])
    assert state.text() == f"the season: {state['season']} ni{state['vowels']}"
    meta = state.get_meta_info("season")
    assert 0 < meta["forced_tokens"] < meta["completion_tokens"]
    assert state.get_meta_info("vowels")["completion_tokens"] <= 9


def test_f07_what_was_forced_is_reused_as_it_is(engine):
    """The next call finds the prompt and the output before it in the cache, all but the tokens that
    were forced at the very end, which nothing has computed."""

    def program(s):
        s += "the quick brown fox " * 6 + rs.gen("season", regex="<(春天|夏天)> [a-z]")
        s += " and " + rs.gen("more", regex="[a-c]{3}")

    engine.flush_cache()
    state = run(program, engine)
    before, after = state.get_meta_info("season"), state.get_meta_info("more")
    assert before["forced_tokens"] > 3
    known = before["prompt_tokens"] + before["completion_tokens"]
    assert known - 2 <= after["cached_tokens"] <= known


def test_f07_warm_equals_cold_behind_forced_text(engine):
    text = "the quick <冬天快乐> brown"
    params = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}
    engine.flush_cache()
    engine.generate("the quick ", {"regex": "<冬天快乐>"})
    warm = engine.generate(text, params)["output_ids"]
    engine.flush_cache()
    cold = engine.generate(text, params)["output_ids"]
    again = engine.generate(text, params)["output_ids"]
    assert warm == cold == again


def test_json_in_pieces_within_a_scope(engine):
    def program(s):
        with s.var_scope("json"):
            s += '{"name": ' + rs.gen("name", regex='"[a-z]{1,8}"')
            s += ', "age": ' + rs.gen("age", dtype=int, max_tokens=6)
            s += ', "house": ' + rs.gen("house", choice=['"A"', '"B"']) + "}"

    state = run(program, engine)
    found = json.loads(state["json"])
    assert re.fullmatch("[a-z]{1,8}", found["name"])
    assert found["age"] == int(state["age"])
    assert found["house"] in ("A", "B")


def test_several_texts_of_one_call_are_all_bound(engine):
    def program(s):
        s += "x" + rs.gen("card", json_schema=SCHEMA, n=3, max_tokens=60)
        s += "y" + rs.gen("last", json_schema=json.dumps(SCHEMA), max_tokens=60)

    state = run(program, engine)
    for text in [*state["card"], state["last"]]:
        assert json.loads(text).keys() == {"name", "n"}
    assert [meta["forced_tokens"] > 0 for meta in state.get_meta_info("card")] == [True] * 3


def test_forks_and_choices_go_on_from_bound_texts(engine):
    def program(s):
        s += "the" + rs.gen("first", regex="[ab]{4}")
        children = s.fork(3)
        children += lambda i: f" {i}" + rs.gen("next", regex=f"[{i}]{{2}}")
        children.join()
        s += rs.select("pick", [" yes", " no"])

    state = run(program, engine)
    assert state["next"] == ["00", "11", "22"]
    assert state["pick"] in (" yes", " no")
    assert state.text().startswith("the" + state["first"])


def test_what_the_engine_cannot_do_is_raised_with_its_words(engine):
    def program(s):
        s += "x" + rs.gen("a", json_schema={"type": "string", "pattern": "(?<=a)b"})

    with pytest.raises(rs.RequestError, match="#/pattern"):
        run(program, engine)

    def short(s):
        s += "x" + rs.gen("a", json_schema=SCHEMA, max_tokens=2)

    with pytest.raises(rs.RequestError, match="tokens, there is room for 2"):
        run(short, engine)


def test_a_text_that_is_cut_short_says_so(engine):
    def program(s):
        s += "x" + rs.gen("a", regex="[a-z]{2,200}", min_tokens=5, max_tokens=5)

    state = run(program, engine)
    assert re.fullmatch("[a-z]{2,200}", state["a"])
    assert state.get_meta_info("a")["truncated"] is True
    assert state.get_meta_info("a")["finish_reason"]["type"] == "length"
