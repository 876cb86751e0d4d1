"""Forks, joins and copies (cases.md F05), and their place on the wire."""

import threading

import pytest

import radixserve.lang as sgl


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


def test_an_exception_inside_a_copy_is_the_one_that_raises(run):
    def body(s):
        with s.copy() as scratch:
            scratch += sgl.gen("x")
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        run(body, sgl.Mock())
