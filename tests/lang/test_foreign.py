"""OpenAI's and Anthropic's endpoints: what is sent, what is read, what is refused by name."""

import asyncio

import pytest

import radixserve.lang as sgl
from tests.lang import servers


@pytest.fixture(scope="module")
def openai_server():
    with servers.OpenAI() as server:
        yield server


@pytest.fixture
def chat(openai_server, closing):
    openai_server.seen.clear()
    openai_server.refusal = None
    openai_server.drop = False
    return closing(sgl.OpenAI("m", base_url=openai_server.url + "/v1", api_key="secret"))


@pytest.fixture
def claude(anthropic_server, closing):
    anthropic_server.seen.clear()
    anthropic_server.refusal = None
    return closing(sgl.Anthropic("m", base_url=anthropic_server.url, api_key="secret"))


@sgl.function
def talk(s, **sampling):
    s += sgl.system("be brief")
    s += sgl.user("name a dog")
    s += sgl.assistant(sgl.gen("x", **sampling))
    s += sgl.user("another " + "one")
    s += sgl.assistant(sgl.gen("y"))


TURNS = [
    {"role": "user", "content": "name a dog"},
    {"role": "assistant", "content": "dog dog"},
    {"role": "user", "content": "another one"},
]
SYSTEM = {"role": "system", "content": "be brief"}


def test_what_a_chat_endpoint_is_sent(openai_server, chat):
    state = talk.run(backend=chat, stop=["!"], temperature=0.5, seed=1)
    assert (state["x"], state["y"]) == ("dog dog", "one one")
    (path, headers, first), (_, _, second) = openai_server.seen
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == "Bearer secret"
    seed = first.pop("seed")
    assert isinstance(seed, int)
    assert first == {
        "model": "m",
        "messages": [SYSTEM, TURNS[0]],
        "max_completion_tokens": 128,
        "temperature": 0.5,
        "stop": ["!"],
    }
    assert second["messages"] == [SYSTEM, *TURNS]
    meta = state.get_meta_info("x")
    assert (meta["prompt_tokens"], meta["cached_tokens"], meta["completion_tokens"]) == (5, 3, 2)


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_endpoint_on_a_loop_and_streamed(openai_server, chat, stream):
    async def main():
        state = await talk.arun(backend=chat, stream=stream)
        text = "".join([each async for each in state.text_async_iter("y")])
        meta = await state.get_meta_info("y") if stream else state.get_meta_info("y")
        return text, meta["cached_tokens"], meta["finish_reason"]["type"]

    assert asyncio.run(main()) == ("one one", 3, "stop")
    assert {body.get("stream", False) for *_, body in openai_server.seen} == {stream}


def test_a_schema_is_a_response_format(openai_server, chat):
    talk.run(json_schema={"type": "object"}, backend=chat)
    schema = {"name": "output", "schema": {"type": "object"}, "strict": True}
    first = openai_server.seen[0][2]
    assert first["response_format"] == {"type": "json_schema", "json_schema": schema}


@pytest.mark.parametrize(
    ("backend", "sampling", "named"),
    [
        ("chat", {"top_k": 5}, "top_k = 5.*extras=True"),
        ("chat", {"min_p": 0.1}, "min_p"),
        ("chat", {"regex": "a"}, "regex"),
        ("chat", {"choice": ["a", "b"]}, "choice"),
        ("chat", {"stop_token_ids": [3]}, "stop_token_ids"),
        ("chat", {"stop_regex": "a"}, "stop_regex.*extras=True"),
        ("claude", {"stop_regex": "a"}, "stop_regex"),
        ("chat", {"ignore_eos": True}, "ignore_eos"),
        ("chat", {"return_logprob": True, "logprob_start_len": 0}, "logprob_start_len"),
        ("claude", {"n": 2}, "n = 2"),
        ("claude", {"seed": 2}, "sampling_seed"),
        ("claude", {"logit_bias": {1: 2}}, "logit_bias"),
        ("claude", {"json_schema": {}}, "json_schema"),
        ("claude", {"return_logprob": True}, "return_logprob"),
        ("claude", {"frequency_penalty": 1.0}, "frequency_penalty"),
    ],
)
def test_what_an_endpoint_cannot_do_is_named_and_not_sent(request, backend, sampling, named):
    chosen = request.getfixturevalue(backend)
    with pytest.raises(sgl.Unsupported, match=named):
        talk.run(backend=chosen, **sampling)


def expect_unsupported(body, backend, named):
    with pytest.raises(sgl.Unsupported, match=named):
        sgl.function(body).run(backend=backend)


def appended(*parts):
    def body(s):
        for part in parts:
            s += part

    return body


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        (["loose text", sgl.gen("x")], "'loose text' is in no role block"),
        ([sgl.gen("x")], "outside of a role block"),
        ([sgl.user("q" + sgl.gen("x"))], "in a user block"),
        ([sgl.user("q"), sgl.assistant(sgl.select("x", ["a", "b"]))], "select"),
    ],
)
@pytest.mark.parametrize("backend", ["chat", "claude"])
def test_programs_that_are_no_conversation(request, backend, parts, named):
    expect_unsupported(appended(*parts), request.getfixturevalue(backend), named)


def test_a_begun_message_needs_extras(chat):
    parts = [sgl.user("q"), sgl.assistant("Well, " + sgl.gen("x"))]
    expect_unsupported(appended(*parts), chat, "Well, ")


def test_what_the_messages_api_is_sent(anthropic_server, claude):
    state = talk.run(backend=claude, stop=["!"], temperature=0.5, top_k=3)
    assert (state["x"], state["y"]) == ("dog dog", "one one")
    (path, headers, first), (_, _, second) = anthropic_server.seen
    assert path == "/v1/messages"
    assert headers["x-api-key"] == "secret"
    assert headers["anthropic-version"] == "2023-06-01"
    assert first == {
        "model": "m",
        "system": "be brief",
        "messages": TURNS[:1],
        "max_tokens": 128,
        "stop_sequences": ["!"],
        "temperature": 0.5,
        "top_k": 3,
    }
    assert second["messages"] == TURNS
    meta = state.get_meta_info("x")
    assert (meta["prompt_tokens"], meta["cached_tokens"], meta["completion_tokens"]) == (8, 4, 2)


def test_stops_and_begun_messages_of_the_messages_api(anthropic_server, claude):
    parts = [sgl.user("q"), sgl.assistant("Well," + sgl.gen("x", stop=" "))]
    state = sgl.function(appended(*parts)).run(backend=claude)
    assert state["x"] == "Well,"
    assert state.get_meta_info("x")["finish_reason"] == {"type": "stop", "matched": " "}
    begun = {"role": "assistant", "content": "Well,"}
    assert anthropic_server.seen[0][2]["messages"] == [{"role": "user", "content": "q"}, begun]


def test_a_late_system_block_is_refused(claude):
    parts = [sgl.user("q"), sgl.system("s"), sgl.assistant(sgl.gen("x"))]
    expect_unsupported(appended(*parts), claude, "one system block")


@pytest.mark.parametrize("stream", [False, True])
def test_errors_of_the_messages_api(anthropic_server, claude, stream):
    anthropic_server.refusal = (529, anthropic_server.error("overloaded_error", "Overloaded"))
    with pytest.raises(sgl.BackendError, match="Overloaded") as caught:
        talk.run(backend=claude, stream=stream).sync()
    assert (caught.value.status, caught.value.code) == (529, "overloaded_error")


def test_the_wait_that_a_server_asks_for_is_read(openai_server, chat):
    error = {"message": "slow down", "type": "rate_limit", "code": "rate_limit_exceeded"}
    openai_server.refusal = (429, {"error": error, "_headers": {"Retry-After": "1.5"}})
    with pytest.raises(sgl.BackendError, match="slow down") as caught:
        talk.run(backend=chat)
    assert caught.value.retry_after == 1.5


@pytest.mark.parametrize(
    "reply", [{}, {"choices": None}, {"choices": [{"index": 0}]}, [], "text"], ids=repr
)
def test_a_reply_in_no_dialect_is_an_error(openai_server, chat, reply):
    openai_server.refusal = (200, reply if reply != [] else {"choices": [None]})
    with pytest.raises(sgl.BackendError, match="malformed"):
        talk.run(backend=chat)


def test_withheld_output_is_an_error(openai_server, chat):
    message = {"role": "assistant", "content": ""}
    choice = {"index": 0, "message": message, "finish_reason": "content_filter"}
    openai_server.refusal = (200, {"choices": [choice]})
    with pytest.raises(sgl.BackendError, match="content_filter"):
        talk.run(backend=chat)
    message["refusal"] = "I will not"
    with pytest.raises(sgl.BackendError, match="I will not"):
        talk.run(backend=chat)


def test_a_stream_that_breaks_off(openai_server, chat, anthropic_server, claude):
    openai_server.refusal = (200, [{"choices": [{"index": 0, "delta": {"content": "d"}}]}])
    with pytest.raises(sgl.BackendError, match="ended before"):
        talk.run(backend=chat, stream=True).sync()
    anthropic_server.refusal = (200, [{"type": "ping"}])
    with pytest.raises(sgl.BackendError, match="ended before"):
        talk.run(backend=claude, stream=True).sync()


def test_cancelling_closes_the_connection(openai_server, chat):
    openai_server.hold.set()

    async def main():
        task = asyncio.create_task(talk.arun(backend=chat))
        while not openai_server.seen:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    try:
        asyncio.run(main())
        assert openai_server.gone.acquire(timeout=5)
    finally:
        openai_server.hold.clear()


def test_connections_of_a_loop_can_be_closed_before_it_ends(openai_server, chat):
    async def main():
        await talk.arun(backend=chat)
        await chat.aclose()
        await chat.aclose()
        return await talk.arun(backend=chat)

    loop = asyncio.new_event_loop()
    try:
        assert loop.run_until_complete(main())["x"] == "dog dog"
        loop.run_until_complete(chat.aclose())
    finally:
        loop.close()


def test_what_such_a_backend_tells_of_itself(chat, claude):
    for backend in (chat, claude):
        assert sgl.get_server_info(backend) == {"data": [{"id": "scripted"}]}
        with pytest.raises(sgl.Unsupported, match="cache"):
            sgl.flush_cache(backend)
        backend.abort("any")


def test_a_completions_endpoint_has_no_roles(closing, openai_server):
    backend = closing(sgl.OpenAI("m", False, base_url=openai_server.url + "/v1"))
    expect_unsupported(appended(sgl.user("q"), sgl.assistant(sgl.gen("x"))), backend, "plain text")
