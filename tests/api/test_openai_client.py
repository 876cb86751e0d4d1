"""The official client against a real server socket."""

from __future__ import annotations

import socket
import threading
import time

import openai
import pytest
import uvicorn

from radixserve.api.app import create_app
from radixserve.config.schema import Config, HttpConfig
from tests.api.scripted import MODEL, ScriptedGateway

OUTPUT = "Paris is the capital 🦙 of France."
MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def gateway(renderer):
    return ScriptedGateway(renderer, (OUTPUT, "Berlin"))


@pytest.fixture(scope="module")
def base_url(gateway):
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        app = create_app(gateway, Config(http=HttpConfig(api_key=("key",))))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        while not server.started:
            time.sleep(0.005)
        yield f"http://127.0.0.1:{port}/v1"
        server.should_exit = True
        thread.join(timeout=10)
        assert not thread.is_alive()


@pytest.fixture
def client(base_url):
    with openai.OpenAI(base_url=base_url, api_key="key", max_retries=0) as each:
        yield each


def test_chat(client):
    reply = client.chat.completions.create(model=MODEL, messages=MESSAGES, n=2, logprobs=True)
    assert [choice.message.content for choice in reply.choices] == [OUTPUT, "Berlin"]
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.prompt_tokens_details.cached_tokens >= 0
    assert "".join(entry.token for entry in reply.choices[0].logprobs.content) == OUTPUT


def test_chat_streamed(client):
    with client.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == OUTPUT
    assert chunks[-1].usage.completion_tokens > 0


def test_chat_through_the_clients_accumulator(client):
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES) as stream:
        reply = stream.get_final_completion()
    assert reply.choices[0].message.content == OUTPUT
    assert reply.choices[0].finish_reason == "stop"


def test_completions(client):
    reply = client.completions.create(model=MODEL, prompt="hello", logprobs=1, echo=True)
    assert reply.choices[0].text == "hello" + OUTPUT
    assert reply.choices[0].logprobs.token_logprobs[0] is None
    stream = client.completions.create(model=MODEL, prompt=["a", "b"], stream=True)
    texts = {0: "", 1: ""}
    for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == {0: OUTPUT, 1: OUTPUT}


def test_models(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_errors_become_the_clients_own(client, base_url):
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-4", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model=MODEL, messages=MESSAGES, stream=True, response_format={"type": "xml"}
        )
    assert refused.value.param == "response_format.type"
    with (
        openai.OpenAI(base_url=base_url, api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


def test_a_failure_in_a_stream_raises(client, gateway):
    gateway.failure = ZeroDivisionError("secret")
    try:
        with (
            client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True) as stream,
            pytest.raises(openai.APIError) as broken,
        ):
            list(stream)
    finally:
        gateway.failure = None
    assert broken.value.code == "internal_error"


@pytest.mark.parametrize("read_first", [False, True])
def test_closing_the_connection_ends_the_call(client, gateway, read_first):
    waits = threading.Event()
    gateway.gate = waits  # is_set() is all that the script asks of it
    try:
        stream = client.chat.completions.create(
            model=MODEL, messages=MESSAGES, stream=True, max_tokens=400
        )
        if read_first:
            next(iter(stream))
        assert gateway.running == 1
        before = len(gateway.closed_early)
        stream.close()
        deadline = time.monotonic() + 2
        while gateway.running and time.monotonic() < deadline:
            time.sleep(0.005)
        assert gateway.running == 0
        assert len(gateway.closed_early) == before + 1
    finally:
        gateway.gate = None


def test_a_client_that_gives_up_waiting_ends_the_call(client, gateway):
    gateway.gate = threading.Event()
    try:
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=0.3).chat.completions.create(model=MODEL, messages=MESSAGES)
        deadline = time.monotonic() + 2
        while gateway.running and time.monotonic() < deadline:
            time.sleep(0.005)
        assert gateway.running == 0
    finally:
        gateway.gate = None
