"""What a gen() may be bound to, and how it goes on the wire."""

from __future__ import annotations

import inspect
import json

import pytest

import radixserve.lang as sgl
from radixserve.lang.constraints import constraint
from radixserve.lang.sampling import Sampling

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def params_of(run, expr, reply="x", **options):
    """The sampling_params that `expr` is sent with, less run()'s defaults."""
    mock = sgl.Mock([reply])

    def program(s):
        s += "q" + expr

    run(program, mock, **options)
    sent = mock.calls[0]["sampling_params"]
    plain = {"max_new_tokens", "n", "temperature", "top_p", "top_k", "min_p", "ignore_eos",
             "frequency_penalty", "presence_penalty"}  # fmt: skip
    return {name: value for name, value in sent.items() if name not in plain}


class Model:
    """As pydantic's models are."""

    @classmethod
    def model_json_schema(cls):
        return SCHEMA


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({}, {}),
        ({"regex": "a+"}, {"regex": "a+"}),
        ({"regex": ""}, {"regex": ""}),
        ({"json_schema": json.dumps(SCHEMA)}, {"json_schema": json.dumps(SCHEMA)}),
        ({"json_schema": SCHEMA}, {"json_schema": SCHEMA}),
        ({"json_schema": Model}, {"json_schema": SCHEMA}),
        ({"json_schema": {}}, {"json_schema": {}}),
        ({"ebnf": 'root ::= "a"'}, {"ebnf": 'root ::= "a"'}),
        ({"choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"choice": iter("ab")}, {"choice": ["a", "b"]}),
        ({"structural_tag": {"format": {}}}, {"structural_tag": {"format": {}}}),
        ({"json_object": True}, {"json_object": True}),
        ({"json_object": False, "regex": None}, {}),
        (
            {"json_schema": SCHEMA, "whitespace": "bounded"},
            {"json_schema": SCHEMA, "whitespace": "bounded"},
        ),
        (
            {"json_schema": SCHEMA, "constraint_mode": "validate"},
            {"json_schema": SCHEMA, "constraint_mode": "validate"},
        ),
    ],
)
def test_a_constraint_goes_on_the_wire(run, given, sent):
    assert params_of(run, sgl.gen("x", **given)) == sent


INT, FLOAT = r"[-+]?[0-9]+[ \n]*", r"[-+]?[0-9]*\.?[0-9]+[ \n]*"


@pytest.mark.parametrize(
    ("dtype", "regex", "stop"),
    [
        (int, INT, [" ", "\n"]),
        ("int", INT, [" ", "\n"]),
        (float, FLOAT, [" ", "\n"]),
        (bool, "(True|False)", None),
        (str, r'"[\w\d\s]*"', None),
    ],
)
def test_a_dtype_is_a_regex_as_in_sglang(run, dtype, regex, stop):
    sent = params_of(run, sgl.gen("x", dtype=dtype), "5")
    assert sent == {"regex": regex} | ({"stop": stop} if stop else {})


def test_a_number_also_ends_where_the_program_says(run):
    assert params_of(run, sgl.gen("x", dtype=int, stop="."), "5")["stop"] == [".", " ", "\n"]
    assert params_of(run, sgl.gen("x", dtype=int), "5", stop=["a"])["stop"] == ["a", " ", "\n"]
    assert params_of(run, sgl.gen("x", regex="a"), "a", stop=["a"])["stop"] == ["a"]


def test_the_variable_of_a_dtype_is_its_text(run):
    def program(s):
        s += "How many? " + sgl.gen("n", dtype=int) + " A name: " + sgl.gen_string("name")

    state = run(program, sgl.Mock(["42 apples", '"Ada"']))
    assert state["n"] == "42"
    assert state["name"] == '"Ada"'
    assert state.text() == 'How many? 42 A name: "Ada"'


def test_gen_int_and_gen_string_take_what_gen_takes(run):
    sent = params_of(run, sgl.gen_int("x", 5, 1, ".", [7], top_p=0.5), "5")
    assert sent == {"regex": INT, "stop": [".", " ", "\n"], "stop_token_ids": [7]}
    assert params_of(run, sgl.gen_string("x", 5, stop='"'), "5")["stop"] == ['"']
    with pytest.raises(TypeError, match="colour"):
        sgl.gen_int("x", colour=1)


@pytest.mark.parametrize(
    ("given", "error", "named"),
    [
        ({"regex": "a", "json_schema": "{}"}, ValueError, "regex and json_schema"),
        ({"regex": "a", "dtype": int}, ValueError, "regex and dtype"),
        ({"ebnf": "a", "choice": ["a"]}, ValueError, "ebnf and choice"),
        ({"choices": ["a"], "regex": "a"}, ValueError, "regex"),
        ({"choices": ["a"], "dtype": int}, ValueError, "stop|regex"),
        ({"choices": ["a"], "json_schema": "{}"}, ValueError, "json_schema"),
        ({"whitespace": "bounded"}, ValueError, "whitespace"),
        ({"constraint_mode": "validate"}, ValueError, "constraint_mode"),
        ({"dtype": list}, ValueError, "dtype"),
        ({"dtype": "integer"}, ValueError, "dtype"),
        ({"dtype": []}, ValueError, "dtype"),
        ({"choice": []}, ValueError, "choice"),
        ({"choice": "ab"}, TypeError, "choice"),
        ({"choice": ["a", 1]}, TypeError, "choice"),
        ({"choice": 5}, TypeError, "choice"),
        ({"regex": 5}, TypeError, "regex"),
        ({"ebnf": ["a"]}, TypeError, "ebnf"),
        ({"json_schema": [1]}, TypeError, "json_schema"),
        ({"structural_tag": 5}, TypeError, "structural_tag"),
        ({"json_object": "yes"}, TypeError, "json_object"),
    ],
)
def test_wrong_constraints_raise_in_user_code(given, error, named):
    with pytest.raises(error, match=named):
        sgl.gen("x", **given)


def test_a_constraint_is_no_default_of_a_run():
    program = sgl.function(lambda s: None)
    with pytest.raises(TypeError):
        program.run_batch([{}], backend=sgl.Mock(), regex="a")


def test_every_parameter_of_gen_has_a_mapping():
    """To a sampling parameter, a constraint, or a part of the expression."""
    renamed = {
        "max_tokens": "max_new_tokens",
        "min_tokens": "min_new_tokens",
        "seed": "sampling_seed",
    }
    given = {renamed.get(name, name) for name in inspect.signature(sgl.gen).parameters}
    told = set(Sampling.__dataclass_fields__) - {"more_stop"}
    beside = {"name", "schema", "timeout", "choices", "choices_method", "dtype"}
    assert told | beside <= given
    for kind in ("regex", "ebnf"):
        assert constraint(dtype=None, whitespace=None, constraint_mode=None, **{kind: "a"}) == {
            kind: "a"
        }


def test_json_in_pieces_within_a_scope(run):
    """SGLang's way: the program writes the structure, the model fills it in."""

    def program(s):
        s += "Character: "
        with s.var_scope("json"):
            s += '{\n  "name": ' + sgl.gen("name", regex='"[a-z]+"') + ",\n"
            s += '  "age": ' + sgl.gen("age", dtype=int) + ",\n"
            s += '  "house": ' + sgl.gen("house", choice=['"A"', '"B"']) + "\n}"

    mock = sgl.Mock(['"harry"', "11\n", '"A"'])
    state = run(program, mock)
    assert json.loads(state["json"]) == {"name": "harry", "age": 11, "house": "A"}
    assert state["name"] == '"harry"'
    sent = [call["sampling_params"] for call in mock.calls]
    assert [each.get("regex") for each in sent] == ['"[a-z]+"', INT, None]
    assert sent[2]["choice"] == ['"A"', '"B"']


class Telling(sgl.Mock):
    """A backend that says how an output stands to its constraint."""

    def _meta(self, body, prompt):
        told = {"forced_tokens": 3, "truncated": True, "constraint_violations": []}
        return super()._meta(body, prompt) | told


@pytest.mark.parametrize("stream", [False, True])
def test_meta_information_tells_what_was_forced_and_truncated(run, stream):
    def program(s):
        s += "q" + sgl.gen("x", json_schema=SCHEMA)

    state = run(program, Telling(['{"n": 5}']), stream=stream)
    meta = state.get_meta_info("x")
    assert (meta["forced_tokens"], meta["truncated"]) == (3, True)
    assert meta["constraint_violations"] == []


def test_a_refusal_of_the_backend_is_raised_where_the_value_is_used(run):
    def refuse(_):
        raise sgl.BackendError(400, "unsupported_schema", "pattern at #/pattern: no", "regex")

    def program(s):
        s += sgl.gen("x", regex="(?<=a)b")
        return s["x"]

    with pytest.raises(sgl.BackendError, match="#/pattern"):
        run(program, sgl.Mock(refuse))


def test_a_schema_in_the_place_of_a_type_says_where_it_belongs():
    with pytest.raises(TypeError, match="json_schema="):
        sgl.gen("x", schema={"type": "object"})
