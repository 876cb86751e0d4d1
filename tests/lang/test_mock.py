"""The mock as a test of a program sees it: scripted choices, whole replies, readable prompts."""

import pytest

import radixserve.lang as sgl

METHODS = [
    sgl.token_length_normalized,
    sgl.greedy_token_selection,
    sgl.unconditional_likelihood_normalized,
    sgl.probability,
]
NESTED = ["yes", "yes please", "no", "no thank you"]


@sgl.function
def agent(s, method=sgl.token_length_normalized):
    s += sgl.user("Which tool?")
    s += sgl.assistant(sgl.gen("thought", max_tokens=4))
    s += sgl.select("tool", ["search", "search the web", "finish"], choices_method=method)
    s += sgl.user("With what?") + sgl.assistant(sgl.gen("query"))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("tool", ["search", "search the web", "finish"])
def test_a_list_scripts_choices_in_their_turn(method, tool):
    state = agent.run(method, backend=sgl.Mock(["I should look it up", tool, "cats"]))
    assert (state["tool"], state["query"]) == (tool, "cats")


@pytest.mark.parametrize("choice", NESTED)
def test_the_scores_of_a_scripted_choice_say_that_it_was_sure(run, choice):
    def body(s):
        s += "q" + sgl.select("x", NESTED, choices_method=sgl.probability)

    meta = run(body, sgl.Mock([choice])).get_meta_info("x")
    assert max(meta["scores"]) == meta["scores"][NESTED.index(choice)] > 0.99


def test_a_reply_that_is_no_choice_says_so_and_is_not_tried_again():
    mock = sgl.Mock(["hm", "serach", "cats"])
    with pytest.raises(sgl.BackendError, match=r"'serach', is none of the choices \['search'"):
        agent.run(backend=mock, retries=3)
    assert len(mock.calls) == 2


def test_a_map_and_a_function_script_choices_too():
    words = {"Which tool?": "finish", "With what?": "nothing"}
    state = agent.run(backend=sgl.Mock(words))
    assert (state["thought"], state["tool"], state["query"]) == ("finish", "finish", "nothing")

    def told(prompt, body):
        return "search the web" if "choices" in body["input"][-1] else "hm"

    assert agent.run(backend=sgl.Mock(told))["tool"] == "search the web"
    assert agent.run(backend=sgl.Mock(lambda prompt: "hm"))["tool"] == "search"


def test_choices_without_a_reply_are_drawn_by_seed_and_prompt(run):
    def body(s):
        forks = s.fork(8)
        forks += lambda i: f"{i}" + sgl.select("x", NESTED)
        forks.join()

    drawn = [run(body, sgl.Mock(seed=seed))["x"] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert set(drawn[0]) | set(drawn[2]) == set(NESTED)


def test_with_log_probabilities_choices_take_no_reply():
    mock = sgl.Mock(["hm", "cats"], logprob=lambda context, token: -1.0 if token == "f" else -2.0)
    state = agent.run(backend=mock)
    assert (state["tool"], state["query"]) == ("finish", "cats")


def test_replies_are_whole_unless_the_mock_cuts():
    assert agent.run(backend=sgl.Mock(["I think", "finish", "x"]))["thought"] == "I think"
    state = agent.run(backend=sgl.Mock(["I think", "finish", "x"], cuts=True))
    assert state["thought"] == "I th"
    assert state.get_meta_info("thought")["finish_reason"] == {"type": "length"}


def test_what_is_made_up_for_a_type_is_whole_at_any_limit(run):
    def body(s):
        s += "q" + sgl.gen("x", schema=list[int], max_tokens=3)

    for seed in range(20):
        assert isinstance(run(body, sgl.Mock(seed=seed))["x"], list)


def test_prompts_can_be_read():
    mock = sgl.Mock(["hm", "search", "cats"])
    agent.run(backend=mock)
    first, second, third = mock.prompts
    assert first == "<user>Which tool?<end><assistant>"
    assert second.endswith("hm<end><assistant>")
    assert third.endswith("search<end><user>With what?<end><assistant>")


def test_a_call_without_a_reply_shows_its_prompt():
    with pytest.raises(sgl.BackendError, match=r"no reply left for '<user>Which tool\?<end>"):
        agent.run(backend=sgl.Mock())
