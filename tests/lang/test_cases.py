"""Open cases F of cases.md on a real model, in process and over HTTP.

F01, F02 and F04 are in test_choices.py and test_choices_engine.py, F05's rules in test_forks.py.
"""

import re

import pytest

import radixserve.lang as sgl


@pytest.fixture(scope="module", params=["tiny_engine", "tiny_server"])
def backend(request):
    place = request.getfixturevalue(request.param)
    if not isinstance(place, str):
        yield place
        return
    endpoint = sgl.RuntimeEndpoint(place)
    yield endpoint
    endpoint.close()


def is_idle(backend):
    info = sgl.get_server_info(backend)
    return (info["running"], info["waiting"], info["locked_tokens"]) == (0, 0, 0)


def test_f05_a_fork_before_anything_was_sent(backend):
    @sgl.function
    def program(s):
        g = s.fork(2)
        g += lambda i: f"{i}" + sgl.gen("x", max_tokens=2)
        inner = g[0].fork(2)
        inner += " more" + sgl.gen("y", max_tokens=2)
        inner.join()
        g.join()
        g.join()
        s.fork(0).join()

    state = program.run(backend=backend, temperature=0)
    assert len(state["x"]) == 2
    assert is_idle(backend)


def test_f05_fifty_forks_and_one_raises(backend):
    @sgl.function
    def program(s):
        s += "the quick brown"
        g = s.fork(50)
        for i, child in enumerate(g):
            refused = {"return_logprob": True, "top_logprobs_num": 99} if i == 17 else {}
            child += f" {i}" + sgl.gen("x", max_tokens=4, **refused)
        failing = [i for i, child in enumerate(g) if child.error() is not None]
        s += " and" + sgl.gen("after", max_tokens=2)
        return failing, [child["x"] for i, child in enumerate(g) if i not in failing]

    failing, texts = program.run(backend=backend, temperature=0).ret_value
    assert failing == [17]
    assert len(texts) == 49
    assert is_idle(backend)


@pytest.mark.parametrize(
    ("pattern", "sampling"),
    [
        ("<(春天|夏天|冬天快乐)>", {"max_tokens": 24}),
        ("(é|è)+", {"max_tokens": 5}),
        ("(ab)?(🙂|🙃)", {"max_tokens": 12}),
    ],
)
def test_f07_patterns_of_several_bytes(backend, pattern, sampling):
    @sgl.function
    def program(s):
        s += "season: " + sgl.gen("x", regex=pattern, **sampling) + " fixed"
        s += sgl.gen("y", max_tokens=3)

    for temperature in (0.0, 1.0):
        state = program.run(backend=backend, temperature=temperature, seed=3)
        assert re.fullmatch(pattern, state["x"])
        assert state.text() == f"season: {state['x']} fixed{state['y']}"
        meta = state.get_meta_info("x")
        assert 0 < meta["completion_tokens"] <= sampling["max_tokens"] + 1


def test_f07_text_that_merges_with_an_output_keeps_its_tokens(backend):
    """A fixed "ni" behind an output is its own tokens; warm and cold go on alike."""

    @sgl.function
    def program(s):
        s += "the quick" + sgl.gen("a", max_tokens=3) + "ni" + sgl.gen("b", max_tokens=3)
        s += "ng" + sgl.gen("c", max_tokens=3)

    sgl.flush_cache(backend)
    cold = program.run(backend=backend, temperature=0)
    warm = program.run(backend=backend, temperature=0)
    assert cold.text() == warm.text()
    assert warm.get_meta_info("c")["cached_tokens"] >= cold.get_meta_info("c")["cached_tokens"]
    whole = cold["a"] + "ni" + cold["b"] + "ng" + cold["c"]
    assert cold.text() == "the quick" + whole
