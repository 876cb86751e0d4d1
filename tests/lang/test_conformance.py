"""One suite for all backends, each as far as its abilities go; what is beyond them says so."""

import asyncio
import contextlib
import typing
from dataclasses import dataclass, field

import pytest

import radixserve.lang as sgl

GREEDY = {"temperature": 0, "max_new_tokens": 6}


@dataclass
class Subject:
    """can: text (outside of roles), roles, select, n, prefill, logprobs, regex, json, seed, ids,
    tools."""

    backend: object
    can: set[str]
    sampling: dict[str, object] = field(default_factory=lambda: dict(GREEDY))
    is_mock: bool = False


OURS = {
    "text", "roles", "select", "n", "prefill", "logprobs", "regex", "json", "seed", "ids", "tools",
}  # fmt: skip
NAMES = [
    "mock",
    "engine",
    "http",
    "recorder",
    "recorded engine",
    "chat",
    "completions",
    "strict chat",
    "anthropic",
]


METHODS = [
    sgl.token_length_normalized,
    sgl.greedy_token_selection,
    sgl.unconditional_likelihood_normalized,
]


def twice(prompt, body):
    if body.get("tool_choice") == "required":
        return sgl.Turn("", [sgl.ToolCall("paint", {"colour": "red"})])
    return prompt[-1:] * 2


def build(name, request):
    fixture = request.getfixturevalue
    key = {"api_key": "none", "extras": True}
    match name:
        case "mock":
            return Subject(sgl.Mock(twice), OURS, is_mock=True)
        case "recorder":
            mock = sgl.Mock(twice)
            return Subject(sgl.Recorder(mock), OURS, is_mock=True)
        case "recorded engine":
            return Subject(sgl.Recorder(fixture("tiny_engine")), OURS)
        case "engine":
            return Subject(fixture("tiny_engine"), OURS)
        case "http":
            return Subject(sgl.RuntimeEndpoint(fixture("tiny_server")), OURS)
        case "chat":
            url = fixture("tiny_server") + "/v1"
            can = {"roles", "n", "prefill", "logprobs", "regex", "json", "seed", "tools"}
            return Subject(sgl.OpenAI("tiny", base_url=url, **key), can)
        case "completions":
            url = fixture("tiny_server") + "/v1"
            can = {"text", "select", "n", "logprobs", "regex", "json", "seed"}
            return Subject(sgl.OpenAI("tiny", False, base_url=url, **key), can)
        case "strict chat":
            url = fixture("tiny_server") + "/v1"
            can = {"roles", "n", "logprobs", "json", "seed", "tools"}
            return Subject(sgl.OpenAI("tiny", base_url=url), can)
        case _:
            url = fixture("anthropic_server").url
            can = {"roles", "prefill", "tools"}
            return Subject(sgl.Anthropic("m", base_url=url, api_key="k"), can)


@pytest.fixture(scope="session", params=NAMES)
def subject(request):
    subject = build(request.param, request)
    yield subject
    if hasattr(subject.backend, "close") and request.param != "engine":
        subject.backend.close()


@sgl.function
def text(s, word="dog"):
    s += f"the quick brown {word}" + sgl.gen("x", stop="zzz") + "!"


@sgl.function
def chat(s, word="dog"):
    s += sgl.system("be brief") + sgl.user(f"about the {word}")
    s += sgl.assistant(sgl.gen("x"))
    s += sgl.user("and then?")
    s += sgl.gen("y")  # a call behind a closed block is an assistant's turn


def program_for(subject):
    return chat if "roles" in subject.can else text


def refused(subject, *needs):
    """Nothing to expect where the backend can, else Unsupported."""
    if set(needs) <= subject.can:
        return contextlib.nullcontext()
    return pytest.raises(sgl.Unsupported)


def test_text(subject):
    with refused(subject, "text"):
        state = text.run(backend=subject.backend, **subject.sampling)
        assert state.text() == f"the quick brown dog{state['x']}!"
        assert state.get_meta_info("x")["finish_reason"]["type"] in ("stop", "length")


def test_roles(subject):
    with refused(subject, "roles"):
        state = chat.run(backend=subject.backend, **subject.sampling)
        roles = [(each["role"], each["content"]) for each in state.messages()]
        assert roles == [
            ("system", "be brief"),
            ("user", "about the dog"),
            ("assistant", state["x"]),
            ("user", "and then?"),
            ("assistant", state["y"]),
        ]


def test_counts(subject):
    state = program_for(subject).run(backend=subject.backend, **subject.sampling)
    meta = state.get_meta_info("x")
    assert meta["prompt_tokens"] > 0
    assert 0 < meta["completion_tokens"] <= 7
    calls = state.explain().calls
    assert [each.name for each in calls] == [*("xy" if "roles" in subject.can else "x")]
    assert all(each.seconds > 0 and each.error is None for each in calls)


def test_a_stream_and_a_loop_give_the_text_of_the_run(subject):
    program, options = program_for(subject), {"backend": subject.backend, **subject.sampling}
    whole = program.run(**options)
    streamed = program.run(stream=True, **options)
    assert "".join(streamed.text_iter()) == whole.text()
    assert streamed["x"] == whole["x"]

    async def on_a_loop():
        state = await program.arun(**options)
        streamed = await program.arun(stream=True, **options)
        return state.text(), "".join([each async for each in streamed.text_async_iter("x")])

    assert asyncio.run(on_a_loop()) == (whole.text(), whole["x"])


def test_batches_keep_their_order(subject):
    program = program_for(subject)
    options = {"backend": subject.backend, **subject.sampling}
    states = program.run_batch([{"word": w} for w in ("dog", "fox", "dog")], **options)
    assert states[0].text() == states[2].text() != states[1].text()
    assert states[1].text() == program.run("fox", **options).text()


def test_forks_and_joins(subject):
    @sgl.function
    def program(s):
        if "roles" in subject.can:
            s += sgl.user("the quick brown fox")
            g = s.fork(3)
            g += sgl.assistant(sgl.gen("x"))
        else:
            s += "the quick brown fox"
            g = s.fork(3)
            g += sgl.gen("x")
        g.join()

    state = program.run(backend=subject.backend, **subject.sampling)
    assert len(state["x"]) == 3
    assert len(set(state["x"])) == 1


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_select(subject, method):
    @sgl.function
    def program(s):
        s += "the quick brown "
        s += sgl.select("x", ["fox", "dog", "foxes"], choices_method=method)
        s += "."

    with refused(subject, "select", "text"):
        state = program.run(backend=subject.backend)
        assert state["x"] in ("fox", "dog", "foxes")
        assert state.text() == f"the quick brown {state['x']}."
        meta = state.get_meta_info("x")
        assert len(meta["scores"]) == 3
        for choice in meta["choices"]:
            assert len(choice["logprobs"]) == len(choice["ids"]) > 0
            assert all(each < 0 for each in choice["logprobs"])


def test_several_outputs(subject):
    with refused(subject, "n"):
        state = program_for(subject).run(backend=subject.backend, n=3, max_new_tokens=4)
        assert len(state["x"]) == 3
        assert all(isinstance(each, str) for each in state["x"])


def test_text_before_the_output_of_a_block(subject):
    @sgl.function
    def program(s):
        s += sgl.user("the quick")
        s += sgl.assistant("brown fox" + sgl.gen("x"))

    with refused(subject, "roles", "prefill"):
        state = program.run(backend=subject.backend, **subject.sampling)
        assert state.messages()[1]["content"] == "brown fox" + state["x"]


def test_logprobs(subject):
    with refused(subject, "logprobs"):
        state = program_for(subject).run(
            backend=subject.backend, return_logprob=True, top_logprobs_num=2, **subject.sampling
        )
        entries = state.get_meta_info("x")["output_token_logprobs"]
        assert 0 < len(entries) <= 7
        assert all(entry[0] <= 0 for entry in entries)


@pytest.mark.parametrize(
    ("ability", "bound"),
    [("regex", {"regex": "[0-9]{2}"}), ("json", {"json_schema": {"type": "integer"}})],
)
def test_constraints(subject, ability, bound):
    @sgl.function
    def program(s):
        if "roles" in subject.can:
            s += sgl.user("a number")
        else:
            s += "a number: "
        s += sgl.gen("x", **bound)

    if subject.is_mock:
        pytest.skip("a scripted mock answers as its script says")
    with refused(subject, ability):
        state = program.run(backend=subject.backend, temperature=0, max_new_tokens=16)
        assert state["x"].lstrip("-").isdigit()


def test_seeds(subject):
    with refused(subject, "seed"):
        texts = {
            program_for(subject).run(backend=subject.backend, seed=5, max_new_tokens=8).text()
            for _ in range(2)
        }
        assert len(texts) == 1


def test_a_refusal_of_the_backend_surfaces(subject):
    if subject.is_mock or isinstance(subject.backend, sgl.Anthropic):
        pytest.skip("it refuses nothing")
    with pytest.raises(Exception, match=r"context|token|length|long") as caught:
        program_for(subject).run("dog " * 20000, backend=subject.backend)
    assert caught.value.status == 400


def paint(colour: typing.Literal["red", "blue"]) -> str:
    """Paint it."""
    return f"painted {colour}"


@sgl.function
def painter(s):
    s += sgl.system("be brief") + sgl.user("paint")
    s += sgl.assistant(
        sgl.gen("call", tools=[paint], tool_choice="required", parallel_tool_calls=False)
    )
    [call] = s["call"].calls
    s += sgl.tool(call, call.run())
    s += sgl.assistant(sgl.gen("said", tool_choice="none", max_tokens=4))
    s += sgl.user("go on") + sgl.assistant(sgl.gen("more", max_tokens=4))


@pytest.mark.parametrize("stream", [False, True])
def test_tools(subject, stream):
    with refused(subject, "tools"):
        options = {"temperature": 0, "max_new_tokens": 90, "stream": stream}
        state = painter.run(backend=subject.backend, **options)
        [call] = state["call"].calls
        assert call.name == "paint"
        assert call.arguments["colour"] in ("red", "blue")
        assert call.id
        roles = [each["role"] for each in state.messages()]
        assert roles == ["system", "user", "assistant", "tool", "assistant", "user", "assistant"]
        told = state.messages()[3]
        assert (told["content"], told["tool_call_id"]) == (call.run(), call.id)
        assert isinstance(state["said"], sgl.Turn)
        assert state["said"].calls == ()
