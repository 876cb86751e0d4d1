"""field_logprobs over HTTP: where it stands, and where it is refused by name."""

from __future__ import annotations

import pytest

from tests.api.scripted import ScriptedGateway, logprob
from tests.api.talk import CHAT, COMPLETIONS, answered, ask, error_of, hello, streamed
from tests.api.tool_talk import TOOLS

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "ok", "schema": SCHEMA}}
SAID = '{"ok": true}'


def gateway_of(renderer, *outputs):
    return ScriptedGateway(renderer, outputs or (SAID,), context_len=4096)


def checked(gateway, fields):
    """The fields of SAID; scores are those of the script."""
    assert fields.keys() == {"", "/ok"}
    encode = gateway.renderer.tokenizer.encode
    for place in fields.values():
        assert place["logprob"] <= 0
        assert place["tokens"] >= 1
    found = fields["/ok"]["alternatives"]
    assert [each["value"] for each in found] == [False, True]
    assert sum(each["probability"] for each in found) == pytest.approx(1)
    shared = len(gateway.requests[-1].prompt) - len(gateway.requests[0].prompt)
    assert shared > 0  # alternatives are scored behind what the output and they have in common
    for each, word in zip(found, ("false", "true"), strict=True):
        ids = encode(word, opens=False, special=False).tolist()
        if each["logprob"] != pytest.approx(sum(map(logprob, ids))):
            ids = encode(f" {word}", opens=False, special=False).tolist()
            assert each["logprob"] == pytest.approx(sum(map(logprob, ids)))


def test_chat_replies_have_it_beside_the_message(renderer):
    gateway = gateway_of(renderer)
    body = hello(response_format=FORMAT, field_logprobs=True, max_tokens=50)
    choice = answered(gateway, CHAT, body)["choices"][0]
    checked(gateway, choice["field_logprobs"])
    assert choice["logprobs"] is None
    first = gateway.requests[0]
    assert (first.output_logprobs, first.sampled_logprobs) == (0, True)
    scoring = gateway.requests[1:]
    assert len(scoring) == 2
    assert all(request.params.max_new_tokens == 0 for request in scoring)
    assert all(request.constraint is None for request in scoring)


def test_streams_have_it_in_the_last_chunk_of_a_choice(renderer):
    gateway = gateway_of(renderer)
    events = streamed(gateway, CHAT, hello(response_format=FORMAT, field_logprobs=True, n=2))
    told = [choice for event in events for choice in event["choices"] if "field_logprobs" in choice]
    assert sorted(choice["index"] for choice in told) == [0, 1]
    assert all(choice["finish_reason"] == "stop" for choice in told)
    assert all(choice["logprobs"] is None for event in events for choice in event["choices"])


def test_logprobs_beside_it_are_those_of_every_token(renderer):
    gateway = gateway_of(renderer)
    body = hello(response_format=FORMAT, field_logprobs=True, logprobs=True, max_tokens=50)
    choice = answered(gateway, CHAT, body)["choices"][0]
    checked(gateway, choice["field_logprobs"])
    assert choice["logprobs"]["content"]
    assert not gateway.requests[0].sampled_logprobs


def test_completions_and_the_native_dialect(renderer):
    gateway = gateway_of(renderer)
    body = {"prompt": "a", "guided_json": SCHEMA, "field_logprobs": True}
    checked(gateway, answered(gateway, COMPLETIONS, body)["choices"][0]["field_logprobs"])
    gateway = gateway_of(renderer)
    sampling = {"json_schema": SCHEMA, "field_logprobs": True}
    reply = answered(gateway, "/generate", {"text": "a", "sampling_params": sampling})
    checked(gateway, reply["meta_info"]["field_logprobs"])
    assert "output_token_logprobs" not in reply["meta_info"]


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({}, "bound"),
        ({"response_format": {"type": "text"}}, "bound"),
        ({"structural_tag": {"format": {"type": "any_text"}}}, "structural_tag"),
        ({"ebnf": 'root ::= root "a" | "b"'}, "ebnf"),
        ({"response_format": FORMAT, "tools": TOOLS}, "tools"),
    ],
)
def test_where_there_are_no_fields(renderer, fields, word):
    gateway = gateway_of(renderer)
    error = error_of(ask(gateway, CHAT, hello(field_logprobs=True, **fields)), 400)
    assert error["param"] == "field_logprobs"
    assert word in error["message"]
    assert not gateway.requests


def test_native_bodies_name_the_place(renderer):
    body = {"text": "a", "sampling_params": {"field_logprobs": True}}
    error = error_of(ask(gateway_of(renderer), "/generate", body), 400)
    assert error["param"] == "sampling_params.field_logprobs"


def test_outputs_that_are_no_json_have_none(renderer):
    """A grammar that only the engine can follow may leave one unfinished."""
    gateway = gateway_of(renderer, '{"ok": tr')
    choice = answered(gateway, CHAT, hello(response_format=FORMAT, field_logprobs=True))["choices"]
    assert choice[0]["field_logprobs"] == {}


def test_alternatives_that_do_not_fit_are_left_out(renderer):
    gateway = gateway_of(renderer)
    prompt = len(gateway.renderer.encode_text("a")) + 12
    gateway.info = type(gateway.info)(
        **{name: getattr(gateway.info, name) for name in gateway.info.__struct_fields__}
        | {"context_len": prompt}
    )
    body = {"prompt": "a", "guided_json": SCHEMA, "field_logprobs": True, "max_tokens": 50}
    fields = answered(gateway, COMPLETIONS, body)["choices"][0]["field_logprobs"]
    assert fields.keys() <= {"", "/ok"}
