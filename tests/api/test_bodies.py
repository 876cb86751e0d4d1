"""Bodies: broken JSON, text that is none, and where every known field belongs."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import typing

import pytest
from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params as chat_params

from radixserve.api import body as bodies
from radixserve.api.app import create_app
from radixserve.api.body import _unique as unique
from radixserve.api.openai import jobs as openai_jobs
from radixserve.api.openai import schema
from radixserve.config.schema import Config
from radixserve.native.apart import LARGE, MANY, is_large
from tests.api.scripted import ScriptedGateway, client
from tests.api.talk import CHAT, COMPLETIONS, answered, ask, error_of, hello

PATHS = (CHAT, COMPLETIONS, "/generate", "/abort_request")
GOOD = b'{"messages":[{"role":"user","content":"x"}]}'


@pytest.fixture
def gateway(renderer):
    return ScriptedGateway(renderer)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","messages":[{"role":"user","content":"x"}], x}',
        b"",
        b"[]",
        b'"x"',
        b"null",
        b"5",
        b"\xff\xfe",
        b'\xff\xfe{\x00}\x00',
        b'{"a":"\xff"}',
        b'{"text":"a","text":"b"}',
        b'{"text":"a","sampling_params":{"n":1,"n":2}}',
        b"[" * 10_000,
        b"[" * 10_000 + b"]" * 10_000,
        b'{"text":' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"temperature":NaN}',
        b'{"temperature":-Infinity}',
        b'{"n":' + b"9" * 5000 + b"}",
        GOOD[:-1],
        GOOD + b"}",
    ],
    ids=lambda body: ascii(body[:24]),
)  # fmt: skip
def test_a01_what_is_no_json_object_is_a_400(gateway, path, body):
    error_of(ask(gateway, path, body), 400)
    assert gateway.requests == []
    assert answered(gateway, CHAT, hello())["choices"]


def post(gateway, content, headers, path=CHAT, **http):
    async def go():
        async with client(gateway, **http) as http_client:
            return await http_client.post(path, content=content, headers=headers)

    return asyncio.run(go())


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "x", ""])
def test_a01_wrong_content_types(gateway, kind):
    error_of(post(gateway, GOOD, {"content-type": kind}), 400)


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON; charset=utf-8", "application/x+json"]
)
def test_right_content_types(gateway, kind):
    assert post(gateway, GOOD, {"content-type": kind}).status_code == 200
    assert post(gateway, GOOD, {}).status_code == 200


def test_a01_compressed_bodies_are_refused(gateway):
    for body in (gzip.compress(GOOD), gzip.compress(GOOD)[:9]):
        headers = {"content-encoding": "gzip", "content-type": "application/json"}
        assert "gzip" in error_of(post(gateway, body, headers), 400)["message"]


def test_a_body_above_the_limit_is_a_413(gateway):
    async def in_pieces():
        for _ in range(4):
            yield b" " * 30

    big = {"content-type": "application/json"}
    for body in (b" " * 101, in_pieces()):
        error = error_of(post(gateway, body, big, max_body=100), 413)
        assert error["code"] == "body_too_large"
    assert post(gateway, GOOD, big, max_body=len(GOOD)).status_code == 200
    error_of(post(gateway, GOOD, big, max_body=len(GOOD) - 1), 413)


@pytest.mark.parametrize(
    ("value", "count"),
    [(b"1,", 1_000_001), (b"[1],", 111_112), (b"{},", 111_112), (b'{"a":1},', 90_910)],
)
def test_a_body_with_too_many_values_is_refused(gateway, value, count):
    body = b'{"prompt":[' + value * count + b"1]}"
    assert error_of(ask(gateway, COMPLETIONS, body), 400)["code"] == "body_too_complex"


def test_a_body_with_too_many_keys_is_refused(gateway):
    keys = b"".join(b'"%x":1,' % i for i in range(333_334))
    error = error_of(ask(gateway, CHAT, b"{" + keys + b'"messages":[]}'), 400)
    assert error["code"] == "body_too_complex"


def test_the_default_limit_of_a_body_is_sixteen_mebibytes(gateway):
    error_of(ask(gateway, CHAT, b" " * (2**24 + 1)), 413)


class CountedName(str):
    """Counts how often names are compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        CountedName.compared += 1
        return str.__eq__(self, other)


def test_finding_a_key_that_stands_twice_takes_linear_time():
    names = [CountedName(i) for i in range(5_000)]
    pairs = [(name, 1) for name in [*names, CountedName(4_999)]]
    with pytest.raises(ValueError, match="'4999' stands twice"):
        unique(pairs)
    assert CountedName.compared < 10 * len(pairs)


def test_a_large_body_is_read_off_the_loop(gateway, monkeypatch):
    """Also its fields, which msgspec walks."""
    threads = []
    for name, kind in (("read_chat", CHAT), ("read_completion", COMPLETIONS)):
        inner = getattr(openai_jobs, name)

        def watched(body, inner=inner):
            threads.append(threading.current_thread().name)
            return inner(body)

        monkeypatch.setattr(openai_jobs, name, watched)
        body = {"prompt": "x"} if kind == COMPLETIONS else hello()
        error_of(ask(gateway, kind, {**body, "metadata": {"a": "b" * 300_000}, "n": 0}), 400)
        assert ask(gateway, kind, body).status_code == 200
    assert [name.startswith("large-body") for name in threads] == [True, False, True, False]
    assert threading.main_thread().name not in threads


def test_few_large_bodies_are_in_memory_at_once(gateway, monkeypatch):
    """Those above the number wait unread, and are refused after a while; small ones pass them."""
    monkeypatch.setattr(bodies, "LARGE_SECONDS", 0.3)
    large = json.dumps(hello()).encode() + b" " * 400_000
    go_on = asyncio.Event()
    taken = 0

    async def halting():
        nonlocal taken
        for at in range(0, len(large), 100_000):
            if at == 300_000:
                taken += 1
                await go_on.wait()
            yield large[at : at + 100_000]

    async def go():
        headers = {"content-type": "application/json"}
        async with client(gateway) as http_client:
            calls = [
                asyncio.create_task(http_client.post(CHAT, content=halting(), headers=headers))
                for _ in range(bodies.MAX_LARGE)
            ]
            while taken < bodies.MAX_LARGE:
                await asyncio.sleep(0.001)
            late = await http_client.post(CHAT, content=large, headers=headers)
            small = await http_client.post(CHAT, json=hello())
            go_on.set()
            others = await asyncio.gather(*calls)
            again = await http_client.post(CHAT, content=large, headers=headers)
            return late, {each.status_code for each in (small, *others, again)}

    late, statuses = asyncio.run(go())
    assert error_of(late, 429)["code"] == "too_many_large_bodies"
    assert statuses == {200}


def test_what_is_large_is_told_by_text_and_number_of_values():
    assert not is_large(["x" * LARGE])
    assert is_large(["x" * (LARGE + 1)])
    assert is_large({"messages": [{"content": "x" * (LARGE // 2)}] * 3})
    assert is_large({"x" * (LARGE + 1): 1})
    assert not is_large({"prompt": [1] * (MANY - 10)})
    assert is_large({"prompt": [1] * (MANY + 1)})
    assert is_large({"prompt": [[1, 2]] * (MANY // 2)})


def test_a_client_that_leaves_amid_its_body_is_no_error(gateway, caplog):
    async def go():
        arriving = [{"type": "http.request", "body": b'{"mess', "more_body": True}]
        sent = []

        async def receive():
            return arriving.pop() if arriving else {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": CHAT, "raw_path": CHAT.encode(),
                 "query_string": b"", "headers": [], "root_path": "", "http_version": "1.1",
                 "scheme": "http", "server": None, "client": None}  # fmt: skip
        await create_app(gateway, Config())(scope, receive, send)
        return sent

    assert asyncio.run(go())[0]["status"] == 499
    assert caplog.records == []


def test_an_abort_has_a_small_body(gateway):
    error_of(ask(gateway, "/abort_request", {"rid": "x" * 70_000}), 413)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "a " * 100_000}]}),
        (COMPLETIONS, {"prompt": "a " * 100_000}),
        (COMPLETIONS, {"prompt": ["a", "a " * 100_000]}),
        ("/generate", {"text": "a " * 100_000}),
        ("/generate", {"input": [{"text": "a " * 100_000}, {"choices": ["a", "b"]}]}),
    ],
)
def test_a_text_that_cannot_fit_is_refused_untokenised(gateway, path, body):
    error = error_of(ask(gateway, path, body), 400)
    assert error["code"] == "context_length_exceeded"
    assert "does not fit 512 tokens" in error["message"]


def test_long_bodies_are_read_in_a_thread(gateway):
    text = "a " * 200_000
    error = error_of(ask(gateway, CHAT, hello(stop=text)), 400)
    assert error["param"] == "stop"
    error = error_of(ask(gateway, COMPLETIONS, {"prompt": text}), 400)
    assert error["code"] == "context_length_exceeded"


HALVES = ("\\ud83d", "\\ude00", "\\uDE00\\uD83D")
PLACES = {
    "messages[0].content": (CHAT, '{"messages":[{"role":"user","content":"a%sb"}]}'),
    "messages[0].role": (CHAT, '{"messages":[{"role":"%s","content":"a"}]}'),
    "messages[0].name": (CHAT, '{"messages":[{"role":"user","content":"a","name":"%s"}]}'),
    "stop": (CHAT, '{"messages":[{"role":"user","content":"a"}],"stop":"%s"}'),
    "stop[1]": (COMPLETIONS, '{"prompt":"a","stop":["a","%s"]}'),
    "model": (CHAT, '{"messages":[{"role":"user","content":"a"}],"model":"%s"}'),
    "user": (CHAT, '{"messages":[{"role":"user","content":"a"}],"user":"%s"}'),
    "metadata": (CHAT, '{"messages":[{"role":"user","content":"a"}],"metadata":{"%s":"x"}}'),
    "prompt": (COMPLETIONS, '{"prompt":"%s"}'),
    "prompt[0]": (COMPLETIONS, '{"prompt":["%s"]}'),
    "text": ("/generate", '{"text":"%s"}'),
    "rid": ("/abort_request", '{"rid":"%s"}'),
    None: (CHAT, '{"%s":1}'),
}


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("half", HALVES)
def test_a09_half_a_surrogate_pair_is_a_400(gateway, place, half):
    path, template = PLACES[place]
    error = error_of(ask(gateway, path, (template % half).encode()), 400)
    assert error["param"] == place
    assert gateway.requests == []


def test_a09_whole_surrogate_pairs_are_text(gateway):
    body = rb'{"prompt":"\ud83d\ude00","echo":true,"max_tokens":0}'
    assert answered(gateway, COMPLETIONS, body)["choices"][0]["text"] == "😀"


def test_a09_an_error_may_quote_half_a_pair(gateway):
    # Not JSON, so the parser's own words come back.
    error_of(ask(gateway, CHAT, rb'{"\ud83d":1,"\ud83d":2}'), 400)


@pytest.mark.parametrize("path", PATHS)
def test_unknown_fields_are_named(gateway, path):
    bodies = {CHAT: hello(), COMPLETIONS: {"prompt": "x"}, "/generate": {"text": "x"}}
    error = error_of(ask(gateway, path, {**bodies.get(path, {"rid": "x"}), "colour": 1}), 400)
    assert (error["param"], error["code"]) == ("colour", "unknown_parameter")


def fields_of(kind):
    return set(kind.__struct_fields__)


@pytest.mark.parametrize(
    ("theirs", "ours", "refused"),
    [
        (chat_params.CompletionCreateParamsBase, schema.ChatRequest, schema.REFUSED_CHAT),
        (completion_params.CompletionCreateParamsBase, schema.CompletionRequest,
         schema.REFUSED_COMPLETION),
    ],
)  # fmt: skip
def test_every_field_of_the_official_client_has_one_place(theirs, ours, refused):
    places = [fields_of(ours), set(schema.HARMLESS), set(refused)]
    known = set().union(*places)
    assert set(typing.get_type_hints(theirs)) - known == set()
    assert sum(map(len, places)) == len(known)


@pytest.mark.parametrize("name", sorted(schema.REFUSED_CHAT))
def test_refused_fields_take_what_asks_for_nothing(gateway, name):
    neutral = schema.REFUSED_CHAT[name]
    for value in (None, *neutral):
        assert ask(gateway, CHAT, hello(**{name: value})).status_code == 200
    for value in ({"an": "effect"}, 7, [False]):
        error = error_of(ask(gateway, CHAT, hello(**{name: value})), 400)
        assert (error["param"], error["code"]) == (name, "unsupported_parameter")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_harmless_fields_are_taken_and_checked(gateway, path):
    body = hello() if path == CHAT else {"prompt": "x"}
    good = {"user": "me", "metadata": {"a": "b"}, "safety_identifier": "x",
            "prompt_cache_key": "k", "prompt_cache_retention": "24h"}  # fmt: skip
    assert good.keys() == schema.HARMLESS.keys()
    assert ask(gateway, path, {**body, **good}).status_code == 200
    assert ask(gateway, path, {**body, **dict.fromkeys(good)}).status_code == 200
    for name in good:
        assert error_of(ask(gateway, path, {**body, name: 5}), 400)["param"] == name


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    "name", ["cache_salt", "rid", "user", "safety_identifier", "prompt_cache_key"]
)
def test_names_that_clients_choose_are_short(gateway, path, name):
    body = hello() if path == CHAT else {"prompt": "x"}
    assert ask(gateway, path, {**body, name: "x" * 256}).status_code == 200
    assert error_of(ask(gateway, path, {**body, name: "x" * 257}), 400)["param"] == name


def test_openai_names_are_hinted_at(gateway):
    error = error_of(ask(gateway, CHAT, hello(max_new_tokens=5)), 400)
    assert "did you mean max_tokens or max_completion_tokens?" in error["message"]


def test_null_means_the_default_everywhere(gateway):
    names = fields_of(schema.ChatRequest) - {"messages"}
    answered(gateway, CHAT, hello())
    answered(gateway, CHAT, json.loads(json.dumps(hello(**dict.fromkeys(names)))))
    first, second = gateway.requests
    assert first.params == second.params
