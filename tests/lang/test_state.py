"""States: text, roles, scopes, variables; what goes on the wire for them."""

import pytest

import radixserve.lang as sgl


def test_text_between_calls_is_one_part_and_replies_replace_what_was_sent(run):
    def body(s):
        s += "one "
        s += "two "
        s += sgl.gen("a")
        s += " three"
        s += sgl.gen("b")

    mock = sgl.Mock(["A", "B"])
    run(body, mock)
    first, second = (call["input"] for call in mock.calls)
    ids = [*mock.tokenizer.encode("one two "), ord("A")]
    assert first == [{"text": "one two "}]
    assert second == [{"ids": ids, "roles": [], "open": None}, {"text": " three"}]


def test_only_output_before_the_cut_of_a_stop_stays_in_the_state(run):
    def body(s):
        s += "q" + sgl.gen("a", stop="st")
        s += sgl.gen("b")

    mock = sgl.Mock(["One st two", "B"], pieces=["One", " s"])
    state = run(body, mock)
    # The stop begins inside the token " s": its space is kept as text, no id is split.
    kept = [ord("q"), *mock.tokenizer.encode("One")]
    assert mock.calls[1]["input"] == [{"ids": kept, "roles": [], "open": None}, {"text": " "}]
    assert state["a"] == "One "
    assert state.text() == "qOne B"


def test_roles_as_expressions_contexts_and_marks_are_the_same(run):
    def expressions(s):
        s += sgl.system("be brief") + sgl.user("hi")
        s += sgl.assistant(sgl.gen("a"))
        s += sgl.user("more")

    def contexts(s):
        with s.system():
            s += "be brief"
        with s.user():
            s += "h"
            s += "i"
        with s.assistant():
            s += sgl.gen("a")
        s.user("more")

    def marks(s):
        s += sgl.system_begin() + "be brief" + sgl.system_end()
        s += sgl.user_begin() + "hi" + sgl.user_end() + sgl.assistant_begin()
        s += sgl.gen("a")
        s += sgl.assistant_end()
        s += sgl.user_begin() + "more" + sgl.user_end()

    inputs, messages = [], []
    for body in (expressions, contexts, marks):
        mock = sgl.Mock(["hello"])
        messages.append(run(body, mock).messages())
        inputs.append(mock.calls[0]["input"])
    assert (
        inputs[0]
        == inputs[1]
        == inputs[2]
        == [
            {"role_open": "system"},
            {"text": "be brief"},
            {"role_close": "system"},
            {"role_open": "user"},
            {"text": "hi"},
            {"role_close": "user"},
            {"role_open": "assistant"},
        ]
    )
    assert (
        messages[0]
        == messages[1]
        == messages[2]
        == [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "hello"},
            {"role": "user", "content": "more"},
        ]
    )


def test_the_open_role_goes_back_with_the_ids(run):
    def body(s):
        s += sgl.user("q")
        with s.assistant():
            s += sgl.gen("a")
            s += " and "
            s += sgl.gen("b")

    mock = sgl.Mock(["A", "B"])
    run(body, mock)
    told, text = mock.calls[1]["input"]
    assert (told["roles"], told["open"], text) == (["user"], "assistant", {"text": " and "})


@pytest.mark.parametrize(
    "expr",
    [
        lambda: sgl.user("a" + sgl.assistant("b")),
        lambda: sgl.user_begin() + sgl.user_begin(),
        lambda: sgl.user_begin() + sgl.assistant_end(),
        lambda: sgl.user_end(),
    ],
)
def test_roles_that_do_not_nest_raise_in_user_code(run, expr):
    lines = []

    def body(s):
        try:
            s += expr()
        except sgl.ProgramError as error:
            lines.append(error)

    run(body)
    assert len(lines) == 1


def test_var_scope_and_assignment(run):
    def body(s):
        s["given"] = [1]
        s.set_var("other", 2)
        with s.var_scope("all"):
            s += "a"
            with s.var_scope("inner"):
                s += sgl.gen("b")
            s += "c"

    state = run(body, sgl.Mock(["B"]))
    assert state["all"] == "aBc"
    assert state["inner"] == "B"
    assert state["given"] == [1]
    assert state["other"] == 2
    assert state.text() == "aBc"


def test_n_texts_for_one_prompt_are_a_list_and_one_request(run):
    def body(s):
        s += "q" + sgl.gen("a", n=3) + "." + sgl.gen("b")

    mock = sgl.Mock(lambda prompt: ["x", "y", "z"] if prompt == "q" else prompt)
    state = run(body, mock)
    assert state["a"] == ["x", "y", "z"]
    assert [meta["completion_tokens"] for meta in state.get_meta_info("a")] == [2, 2, 2]
    assert state["b"] == "qx."
    assert [call["sampling_params"]["n"] for call in mock.calls] == [3, 1]


def test_meta_info(run):
    def body(s):
        s += "q" + sgl.gen("a", stop="!")
        s["plain"] = 1
        assert s.get_meta_info("a")["cached_tokens"] == 0

    state = run(body, sgl.Mock(["A!"]))
    meta = state.get_meta_info("a")
    assert meta["finish_reason"] == {"type": "stop", "matched": "!"}
    assert meta["prompt_tokens"] == 1
    assert "prompt" not in meta
    with pytest.raises(KeyError):
        state.get_meta_info("plain")


def test_appending_something_else_raises_in_user_code(run):
    def body(s):
        s += None

    with pytest.raises(TypeError, match="append"):
        run(body)


def test_generated_ids_are_never_tokenised_again(run):
    """A piece that would merge output and following text must not: state is ids."""

    def body(s):
        s += "x" + sgl.gen("a")
        s += "llo" + sgl.gen("b")

    mock = sgl.Mock(["he", "!"], pieces=["hello", "he"])
    run(body, mock)
    assert mock.calls[1]["input"][0]["ids"] == [ord("x"), *mock.tokenizer.encode("he")]


def test_a_value_that_was_set_has_no_meta_information(run):
    def body(s):
        s += "q" + sgl.gen("x")
        s["x"] = "mine"
        with pytest.raises(KeyError):
            s.get_meta_info("x")

    run(body, sgl.Mock(["X"]))


def test_a_sync_after_a_call_adds_no_border(run):
    def body(s):
        s += "q" + sgl.gen("a")
        s.sync()
        s += "r" + sgl.gen("b")

    mock = sgl.Mock(["A", "B"])
    run(body, mock)
    ids = mock.tokenizer.encode("qA")
    assert mock.calls[1]["input"] == [{"ids": ids, "roles": [], "open": None}, {"text": "r"}]


def test_the_text_shows_role_blocks_and_variables_do_not(run):
    def body(s):
        s += sgl.system("be brief") + "loose "
        with s.var_scope("talk"):
            s += sgl.user("hi") + sgl.assistant(sgl.gen("a"))

    state = run(body, sgl.Mock(["hello"]), stream=True)
    text = "SYSTEM: be brief\nloose USER: hi\nASSISTANT: hello\n"
    assert "".join(state.text_iter()) == state.text() == text
    assert state["talk"] == "hihello"
    assert state.messages()[2] == {"role": "assistant", "content": "hello"}


@pytest.mark.parametrize("call", [sgl.gen("a"), sgl.select("a", ["hello"])])
def test_a_call_right_behind_a_block_is_an_assistants_turn(run, call):
    def without(s):
        s += sgl.user("hi") + call
        s += sgl.user("more")
        [child] = s.fork(1)
        child += sgl.gen("b")
        child.sync()

    def within(s):
        s += sgl.user("hi") + sgl.assistant(call)
        s += sgl.user("more")
        [child] = s.fork(1)
        child += sgl.assistant(sgl.gen("b"))
        child.sync()

    inputs = []
    for body in (without, within):
        mock = sgl.Mock({"": "hello"})
        state = run(body, mock)
        inputs.append([call["input"] for call in mock.calls])
        assert state.messages()[1] == {"role": "assistant", "content": "hello"}
    assert inputs[0] == inputs[1]


def test_text_behind_a_block_keeps_a_call_out_of_the_roles(run):
    def body(s):
        s += sgl.user("hi") + "\nThe answer:" + sgl.gen("a")

    mock = sgl.Mock(["hello"])
    assert len(run(body, mock).messages()) == 1
    assert mock.calls[0]["input"][-1] == {"text": "\nThe answer:"}


def test_roles_that_do_not_fit_leave_the_state_as_it_was(run):
    def body(s):
        with pytest.raises(sgl.ProgramError):
            s += "lost" + sgl.user_begin() + sgl.system_begin()
        s += sgl.user("hi") + sgl.gen("a")

    mock = sgl.Mock(["hello"])
    assert run(body, mock).messages()[0]["content"] == "hi"
    assert mock.calls[0]["input"][0] == {"role_open": "user"}
