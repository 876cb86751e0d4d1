"""What is told of the cache over HTTP."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.api.scripted import ScriptedGateway, client
from tests.api.talk import CHAT, COMPLETIONS, answered, ask, error_of, hello, streamed

GENERATE = {"text": "hello there", "explain_cache": True}


@pytest.fixture
def gateway(renderer):
    return ScriptedGateway(renderer, ("Paris", "Berlin"))


def check_report(report, matched, prompt_tokens, ids, tokenizer) -> None:
    own = ids[matched] if ids is not None else report["token"]["id"]
    assert report == {
        "matched_tokens": matched,
        "prompt_tokens": prompt_tokens,
        "reason": "evicted",
        "explanation": report["explanation"],
        "token": {"id": own, "text": tokenizer.token_text(own)},
        "cached_token": {"id": 7, "text": tokenizer.token_text(7)},
        "lost_tokens": 1,
    }
    assert "evicted" in report["explanation"]


def test_native_answers_explain(gateway, renderer) -> None:
    ids = renderer.encode_text("hello there").tolist()
    for n in (1, 2):
        found = answered(gateway, "/generate", {**GENERATE, "sampling_params": {"n": n}})
        first = found[0] if n > 1 else found
        matched = first["meta_info"]["cached_tokens"]
        check_report(first["meta_info"]["cache"], matched, len(ids), ids, renderer.tokenizer)
    chunks = streamed(gateway, "/generate", GENERATE)
    assert "cache" not in chunks[0]["meta_info"]
    assert chunks[-1]["meta_info"]["cache"]["reason"] == "evicted"
    assert "cache" not in answered(gateway, "/generate", {"text": "hello"})["meta_info"]


def test_choices_explain(gateway) -> None:
    parts = [{"text": "is it "}, {"choices": ["yes", "no"]}]
    found = answered(gateway, "/generate", {"input": parts, "explain_cache": True})
    assert found["meta_info"]["cache"]["reason"] == "evicted"


def test_openai_answers_explain(gateway, renderer) -> None:
    found = answered(gateway, CHAT, hello(explain_cache=True))
    (report,) = found["cache"]
    check_report(report, 0, found["usage"]["prompt_tokens"], None, renderer.tokenizer)
    body = {"prompt": ["aa", "bb cc"], "explain_cache": True, "n": 2}
    found = answered(gateway, COMPLETIONS, body)
    assert [report["reason"] for report in found["cache"]] == ["evicted", "evicted"]
    assert "cache" not in answered(gateway, CHAT, hello())


@pytest.mark.parametrize("usage", [True, False])
def test_openai_streams_explain_at_the_end(gateway, usage) -> None:
    options = {"stream_options": {"include_usage": True}} if usage else {}
    events = streamed(gateway, CHAT, hello(explain_cache=True, **options))
    assert all("cache" not in event for event in events[:-1])
    assert events[-1]["choices"] == []
    assert events[-1]["cache"][0]["reason"] == "evicted"
    assert ("usage" in events[-1]) is usage


def test_explain_cache_is_a_bool(gateway) -> None:
    bodies = {"/generate": {"text": "x"}, CHAT: hello(), COMPLETIONS: {"prompt": "x"}}
    for path, body in bodies.items():
        error = error_of(ask(gateway, path, body | {"explain_cache": "yes"}), 400)
        assert error["param"] == "explain_cache"


def test_stats(gateway) -> None:
    found = ask(gateway, "/v1/cache/stats", None, "GET").json()
    assert found["warm"] == found["nodes"] == 1


def test_the_tree_is_nested(gateway, renderer) -> None:
    found = ask(gateway, "/v1/cache/tree?depth=2&limit=5&namespace=a", None, "GET").json()
    assert gateway.asked_tree == ("a", 2, 5)
    (root,) = found["namespaces"]
    assert (root["namespace"], found["left_out"]) == ("a", 0)
    (child,) = root["children"]
    assert child["text"] == renderer.tokenizer.decode([300, 301])
    assert (child["tokens"], child["is_warm"], child["last_used"]) == (20, True, 9)
    assert child["children"][0]["left_out"] == 3
    ask(gateway, "/v1/cache/tree", None, "GET")
    assert gateway.asked_tree == (None, 4, 200)


@pytest.mark.parametrize(
    ("query", "param"),
    [("depth=-1", "depth"), ("depth=65", "depth"), ("limit=0", "limit"), ("limit=x", "limit"),
     ("limit=9999999999999999", "limit"), ("deep=1", "deep")],
)  # fmt: skip
def test_bad_questions_about_the_tree(gateway, query, param) -> None:
    assert error_of(ask(gateway, f"/v1/cache/tree?{query}", None, "GET"), 400)["param"] == param


def test_only_admins_see_the_cache(gateway) -> None:
    keys = {"api_key": ("user",), "admin_key": ("boss",)}
    for path in ("/v1/cache/stats", "/v1/cache/tree"):
        for key, status in ((None, 401), ("user", 403), ("boss", 200)):
            assert got(gateway, path, key, **keys).status_code == status


def got(gateway, path, key, **http) -> httpx.Response:
    async def go() -> httpx.Response:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        async with client(gateway, **http) as http_client:
            return await http_client.get(path, headers=headers)

    return asyncio.run(go())
