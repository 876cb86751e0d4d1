"""States: text, roles, scopes, forks, joins, copies; what goes on the wire for them."""

import threading

import pytest

import radixserve.lang as sgl


def text_of(parts):
    return "".join(part.get("text", "") for part in parts)


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


# Forks (cases.md F05)


def test_fork_as_the_first_statement(run):
    def body(s):
        g = s.fork(2)
        g[0] += "a" + sgl.gen("x")
        g[1] += "b" + sgl.gen("x")
        g.join()
        assert s.text() == ""

    assert run(body, sgl.Mock(lambda prompt: prompt * 2))["x"] == ["aa", "bb"]


def test_children_start_from_the_text_at_fork_time(run):
    seen = {}

    def body(s):
        s += "base"
        s["before"] = 1
        g = s.fork(2)
        s += " parent"
        g += lambda i: f" child{i}"
        seen["children"] = [child.text() for child in g]
        seen["parent"] = s.text()
        seen["before"] = [child["before"] for child in g]

    run(body)
    assert seen == {
        "children": ["base child0", "base child1"],
        "parent": "base parent",
        "before": [1, 1],
    }


@pytest.mark.parametrize("size", [0, 1])
def test_small_forks(run, size):
    def body(s):
        g = s.fork(size)
        assert len(g) == size
        g += sgl.gen("x")
        g.join()

    state = run(body, sgl.Mock(["A"]))
    assert ("x" in state) is (size == 1)


def test_negative_fork_raises(run):
    with pytest.raises(ValueError, match="-1"):
        run(lambda s: s.fork(-1))


@pytest.mark.parametrize("use_thread", [True, False])
def test_fork_of_a_fork_and_results_by_index(run, use_thread):
    def body(s):
        outer = s.fork(3)
        for i, child in enumerate(outer):
            child += f"{i}"
            inner = child.fork(2)
            inner += lambda j: f"{j}" + sgl.gen("x")
            inner.join()
        outer.join()

    state = run(body, sgl.Mock(lambda prompt: f"<{prompt}>"), use_thread=use_thread)
    assert state["x"] == [["<00>", "<01>"], ["<10>", "<11>"], ["<20>", "<21>"]]


def test_forked_states_work_side_by_side(run):
    all_there = threading.Barrier(3)

    def script(prompt):
        all_there.wait(10)
        return prompt

    def body(s):
        g = s.fork(3)
        g += lambda i: f"{i}" + sgl.gen("x")
        g.join()

    assert run(body, sgl.Mock(script))["x"] == ["0", "1", "2"]


def test_without_threads_forked_states_work_in_the_callers_thread(run):
    threads = set()

    def script(prompt):
        threads.add(threading.current_thread())
        return prompt

    def body(s):
        g = s.fork(3)
        g += "q" + sgl.gen("x")

    run(body, sgl.Mock(script), use_thread=False)
    assert threads == {threading.current_thread()}


def test_what_a_group_can_be_given(run):
    def body(s):
        g = s.fork(2)
        g += "a"
        g += ["b", sgl.gen("x")]
        g += lambda i: str(i)
        texts = [child.text() for child in g]
        assert texts == ["ab0", "aX1"]
        with pytest.raises(ValueError, match="3 expressions for 2"):
            g += ["a", "b", "c"]
        with pytest.raises(TypeError, match="replaced"):
            g[0] = g[1]

    run(body, sgl.Mock(["X"]))


def test_join_twice_gathers_twice(run):
    def body(s):
        g = s.fork(2)
        g += lambda i: f"{i}" + sgl.gen("x")
        g.join()
        assert s["x"] == ["0", "1"]
        g.join()
        assert s["x"] == ["0", "1"]
        again = s.fork(2)
        again += lambda i: f"+{i}" + sgl.gen("x")
        again.join()
        again[0]["x"] = "set"
        again.join()

    assert run(body, sgl.Mock(lambda prompt: prompt))["x"] == ["set", "+1"]


def test_join_gathers_only_what_children_set(run):
    def body(s):
        s["mine"] = "kept"
        g = s.fork(2)
        g[0]["only"] = 1
        with pytest.raises(NotImplementedError, match="concate_and_append"):
            g.join("concate_and_append")
        g.join()

    state = run(body)
    assert state["mine"] == "kept"
    assert state["only"] == [1, None]


def test_join_brings_meta_information(run):
    def body(s):
        g = s.fork(2)
        g += "abc" + sgl.gen("x")
        g.join()

    metas = run(body, sgl.Mock(lambda prompt: prompt)).get_meta_info("x")
    assert [meta["prompt_tokens"] for meta in metas] == [3, 3]


def test_a_fork_is_a_border_between_segments_in_parent_and_children(run):
    def body(s):
        s += "ba"
        g = s.fork(2)
        g += "se" + sgl.gen("x")
        g.join()
        s += "se" + sgl.gen("y")

    mock = sgl.Mock(lambda prompt: prompt, pieces=["base"])
    run(body, mock)
    expected = [{"text": "ba"}, {"border": True}, {"text": "se"}]
    assert [call["input"] for call in mock.calls] == [expected] * 3


def test_sync_is_a_border_and_reading_is_none(run):
    def body(s):
        s += "a"
        assert s.text() == "a"
        assert "x" not in s
        s += "b"
        s.sync()
        s.sync()
        s += "c" + sgl.gen("x")

    mock = sgl.Mock(["X"])
    run(body, mock)
    assert mock.calls[0]["input"] == [{"text": "ab"}, {"border": True}, {"text": "c"}]


def test_copy(run):
    def body(s):
        s += "a"
        copied = s.copy()
        copied += "b"
        assert copied.text() == "ab"
        with s.copy() as scratch:
            scratch += "c" + sgl.gen("x")
        assert s["x"] == ["X"]

    assert run(body, sgl.Mock(["X"])).text() == "a"


def test_calls_name_their_place_in_the_program(run):
    def body(s):
        s += "a" + sgl.gen("a")
        g = s.fork(2)
        inner = g[0].fork(2)
        inner += "b" + sgl.gen("b")
        g[1] += "c" + sgl.gen("c")
        g[1] += "d" + sgl.gen("d")
        s += "e" + sgl.gen("e")

    mock = sgl.Mock(lambda prompt: "")
    run(body, mock)
    programs = [call["program"] for call in mock.calls]
    [program_id] = {each["id"] for each in programs}
    places = {each["call"]: (each["parent"], each["siblings"]) for each in programs}
    assert places == {
        "0": ("", 1),
        "1.0.0.0.0": ("0", 4),
        "1.0.0.1.0": ("0", 4),
        "1.1.0": ("0", 2),
        "1.1.1": ("1.1.0", 1),
        "2": ("0", 1),
    }
    assert {call["rid"] for call in mock.calls} == {f"{program_id}-{call}" for call in places}


def test_generated_ids_are_never_tokenised_again(run):
    """A piece that would merge output and following text must not: state is ids."""

    def body(s):
        s += "x" + sgl.gen("a")
        s += "llo" + sgl.gen("b")

    mock = sgl.Mock(["he", "!"], pieces=["hello", "he"])
    run(body, mock)
    assert mock.calls[1]["input"][0]["ids"] == [ord("x"), *mock.tokenizer.encode("he")]


def test_a_child_has_all_that_its_parent_had(run):
    def body(s):
        s += sgl.user("q")
        with s.assistant():
            s += sgl.gen("a") + " and"
            [child] = s.fork(1)
        with pytest.raises(sgl.ProgramError, match="inside role 'assistant'"):
            child += sgl.user("q")
        child += " more" + sgl.assistant_end()
        assert child.messages() == [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "A and more"},
        ]
        assert s.messages()[1]["content"] == "A and"
        assert child["a"] == "A"
        assert child.get_meta_info("a") == s.get_meta_info("a")
        assert list(child.text_iter("a")) == ["A"]

    run(body, sgl.Mock(["A"]))


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


def test_an_exception_inside_a_copy_is_the_one_that_raises(run):
    def body(s):
        with s.copy() as scratch:
            scratch += sgl.gen("x")
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        run(body, sgl.Mock())
