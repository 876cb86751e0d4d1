"""Programs: arguments, defaults, nesting, batches."""

import threading

import pytest

import radixserve.lang as sgl


@sgl.function
def echo(s, word, suffix="!"):
    s += word + sgl.gen("out") + suffix
    return word.upper()


def test_function_with_and_without_parentheses():
    @sgl.function()
    def ask(s):
        s += "Q" + sgl.gen("a")

    assert ask.run(backend=sgl.Mock(["A"]))["a"] == "A"
    assert echo.run("w", backend=sgl.Mock(["A"]))["out"] == "A"
    assert echo.__name__ == "echo"


def test_result_has_text_variables_and_return_value():
    state = echo.run(word="hi ", backend=sgl.Mock(["there"]))
    assert state.text() == "hi there!"
    assert state["out"] == state.get_var("out") == "there"
    assert state.ret_value == "HI "
    assert "out" in state
    assert "other" not in state
    assert state.error() is None
    with pytest.raises(KeyError, match="other"):
        state["other"]


def test_result_can_not_be_extended():
    state = echo.run("w", backend=sgl.Mock(["A"]))
    for extend in (lambda: state.__iadd__("x"), state.fork, state.copy, state.user().__enter__):
        with pytest.raises(sgl.ProgramError):
            extend()


def test_a_state_kept_beyond_its_program_can_only_be_read(run):
    kept = []

    def body(s):
        s += "a"
        kept.extend([s, *s.fork(1)])

    run(body)
    for state in kept:
        assert state.text() == "a"
        with pytest.raises(sgl.ProgramError, match="ended"):
            state += "b"


def test_gen_falls_back_on_run_and_run_on_the_neutral_values(run):
    def body(s):
        s += sgl.gen("a", temperature=0.0, stop=["x", "y"], min_tokens=2, return_logprob=True)
        s += sgl.gen("b", max_tokens=5)

    mock = sgl.Mock(["A", "B"])
    run(body, mock, temperature=0.7, max_new_tokens=9, stop="z", top_p=None, top_logprobs_num=3)
    first, second = mock.calls
    neutral = {
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "ignore_eos": False,
        "n": 1,
    }
    assert first["sampling_params"] == neutral | {
        "temperature": 0.0,
        "max_new_tokens": 9,
        "min_new_tokens": 2,
        "stop": ["x", "y"],
    }
    assert second["sampling_params"] == neutral | {
        "temperature": 0.7,
        "max_new_tokens": 5,
        "stop": ["z"],
    }
    assert first["return_logprob"] is True
    assert "return_logprob" not in second
    assert first["top_logprobs_num"] == second["top_logprobs_num"] == 3


def test_wrong_arguments_raise_before_anything_runs():
    mock = sgl.Mock(["A"])
    with pytest.raises(TypeError, match=r"echo\(\).*word"):
        echo.run(backend=mock)
    with pytest.raises(TypeError, match="wrod"):
        echo.run("w", wrod="x", stream=True, backend=mock)
    with pytest.raises(TypeError, match="state"):
        sgl.function(lambda: None)
    assert mock.calls == []


def test_bind():
    bound = echo.bind(suffix="?")
    assert bound.run("w", backend=sgl.Mock(["A"])).text() == "wA?"
    assert bound.bind(word="v").run(backend=sgl.Mock(["A"])).text() == "vA?"
    assert echo.run("w", backend=sgl.Mock(["A"])).text() == "wA!"
    with pytest.raises(TypeError, match="colour"):
        echo.bind(colour=1)


def test_nested_programs_run_on_the_same_state(run):
    def body(s):
        s += "["
        assert echo(s, "a") == "A"
        s += "|" + echo("b", suffix="?") + "]"

    state = run(body, sgl.Mock(["1", "2"]))
    assert state.text() == "[a1!|b2?]"
    assert state["out"] == "2"


def test_a_call_without_a_state_says_how_to_run_it():
    with pytest.raises(TypeError, match=r"echo.run"):
        echo("w")["out"]


def test_default_backend():
    mock = sgl.Mock(["A"])
    sgl.set_default_backend(mock)
    try:
        assert echo.run("w")["out"] == "A"
        assert sgl.get_server_info()["calls"] == 1
        sgl.flush_cache()
    finally:
        sgl.set_default_backend(None)
    with pytest.raises(ValueError, match="set_default_backend"):
        echo.run("w")
    with pytest.raises(TypeError, match="not a backend"):
        sgl.set_default_backend("http://localhost")


def test_batch_keeps_order_while_runs_end_in_another():
    others_done = threading.Event()

    def script(prompt):
        if prompt == "0":
            assert others_done.wait(10)
        elif prompt == "3":
            others_done.set()
        return f"<{prompt}>"

    states = echo.run_batch([{"word": str(i)} for i in range(4)], backend=sgl.Mock(script))
    assert [state["out"] for state in states] == ["<0>", "<1>", "<2>", "<3>"]
    assert [state.ret_value for state in states] == ["0", "1", "2", "3"]


def test_batch_takes_positional_items_and_sampling():
    mock = sgl.Mock(lambda prompt: prompt)
    states = echo.run_batch([("a",), ["b", "?"]], backend=mock, temperature=0.0, num_threads=1)
    assert [state.text() for state in states] == ["aa!", "bb?"]
    assert {call["sampling_params"]["temperature"] for call in mock.calls} == {0.0}
    assert len({call["program"]["id"] for call in mock.calls}) == 2


def test_empty_batch_needs_no_backend():
    assert echo.run_batch([]) == []
    assert list(echo.run_batch([], generator_style=True)) == []


def test_batch_refuses_what_it_does_not_know():
    with pytest.raises(TypeError, match="max_tokens"):
        echo.run_batch([("a",)], backend=sgl.Mock(), max_tokens=3)
    with pytest.raises(TypeError, match="word"):
        echo.run_batch([{}], backend=sgl.Mock())
    with pytest.raises(TypeError, match="item"):
        echo.run_batch(["a"], backend=sgl.Mock())
    with pytest.raises(ValueError, match="num_threads"):
        echo.run_batch([("a",)], backend=sgl.Mock(), num_threads=0)


def test_batch_raises_the_first_error_and_starts_no_more():
    def script(prompt):
        if prompt == "2":
            raise ValueError("two is bad")
        return "ok"

    mock = sgl.Mock(script)
    with pytest.raises(ValueError, match="two is bad"):
        echo.run_batch([(str(i),) for i in range(100)], backend=mock, num_threads=1)
    assert len(mock.calls) == 3


def test_batch_as_a_generator_runs_a_bounded_number_ahead():
    mock = sgl.Mock(lambda prompt: prompt)
    states = echo.run_batch(
        [(str(i),) for i in range(50)], backend=mock, num_threads=2, generator_style=True
    )
    assert [next(states)["out"] for _ in range(3)] == ["0", "1", "2"]
    assert len(mock.calls) <= 3 + 4
    states.close()
    assert len(mock.calls) <= 3 + 4


def test_progress_goes_to_standard_error(capsys):
    echo.run_batch([("a",), ("b",)], backend=sgl.Mock(["1", "2"]), progress_bar=True)
    _, first, *_, last = capsys.readouterr().err.split("\r")
    assert first == "0/2 [........................]"
    assert last.startswith("2/2 [########################] ")
    assert last.endswith("/s\n")


def test_items_of_a_checkpoint_say_nothing_of_the_speed(capsys, tmp_path):
    path = tmp_path / "batch"

    def last_shown():
        backend = sgl.Mock(["1", "2"])
        echo.run_batch([("a",), ("b",)], backend=backend, progress_bar=True, checkpoint=path)
        return capsys.readouterr().err.split("\r")[-1]

    assert last_shown().endswith("/s\n")
    assert last_shown() == "2/2 [########################]\n"


def test_an_error_of_a_batch_names_its_item():
    @sgl.function
    def picky(s, word):
        if word == "b":
            raise LookupError("no b")
        s += word

    with pytest.raises(LookupError, match="no b") as caught:
        picky.run_batch([("a",), ("b",), ("a",)], backend=sgl.Mock([]), num_threads=1)
    assert caught.value.__notes__ == ["raised by item 1 of run_batch"]


def test_a_parameter_of_the_function_goes_before_a_sampling_argument():
    @sgl.function
    def parallel_sample(s, question, n, temperature=0.5):
        forks = s.fork(n)
        forks += question + sgl.gen("x", temperature=temperature)
        forks.join()
        return temperature

    mock = sgl.Mock(lambda prompt: "A")
    state = parallel_sample.run(question="q", n=3, temperature=0.25, top_p=0.5, backend=mock)
    assert (state["x"], state.ret_value) == (["A"] * 3, 0.25)
    sent = [call["sampling_params"] for call in mock.calls]
    assert [(each["n"], each["temperature"], each["top_p"]) for each in sent] == [
        (1, 0.25, 0.5)
    ] * 3


def test_a_parameter_that_run_takes_itself_is_named_with_its_way_out():
    @sgl.function
    def waiting(s, timeout):
        s += f"{timeout}"

    with pytest.raises(TypeError, match=r"timeout= of its own: use bind\(timeout=\.\.\)"):
        waiting.run(timeout=3, backend=sgl.Mock())
    assert waiting.bind(timeout=3).run(backend=sgl.Mock()).text() == "3"


def test_programs_and_states_show_what_they_are():
    state = echo.run("w", backend=sgl.Mock(["A" * 99]))
    assert repr(echo) == "<program echo(s, word, suffix='!')>"
    compiled = sgl.Compiled.from_json(echo.compile("w").to_json())
    assert repr(compiled) == "<compiled echo(), 1 calls>"
    assert repr(state).startswith("<state with out='AAAA")
    assert len(repr(state)) < 60
    with pytest.raises(KeyError, match="other") as caught:
        state["other"]
    assert caught.value.__notes__ == ["variables of this state: out"]


def test_a_state_of_a_run_that_failed_shows_why():
    state = echo.run("w", backend=sgl.Mock([]), stream=True)
    assert state.error() is not None
    assert "no variable; BackendError(" in repr(state)
