"""run_batch: errors kept, checkpoints, generators that hold memory flat, batches on a loop."""

import asyncio
import gc
import io
import pickle
import threading
import weakref

import pytest

import radixserve.lang as sgl


@sgl.function
def echo(s, word):
    s += word + sgl.gen("x")
    return s["x"].upper()


@sgl.function
async def anecho(s, word):
    s += word + sgl.gen("x")
    return (await s["x"]).upper()


def doubled(prompt):
    if "bad" in prompt:
        raise RuntimeError("no GPU")
    return prompt * 2


PROGRAMS = [echo, anecho]


@pytest.mark.parametrize("program", PROGRAMS)
def test_errors_stand_in_their_places(program):
    items = [("a",), ("bad",), ("c",)]
    results = program.run_batch(items, backend=sgl.Mock(doubled), return_exceptions=True)
    assert [results[0].ret_value, results[2].ret_value] == ["AA", "CC"]
    assert isinstance(results[1], RuntimeError)
    assert "raised by item 1 of run_batch" in results[1].__notes__


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_batch_on_a_loop(program):
    async def main():
        return [
            state.ret_value
            async for state in program.arun_batch(
                [{"word": str(i)} for i in range(20)], backend=sgl.Mock(doubled), num_threads=3
            )
        ]

    assert asyncio.run(main()) == [f"{i}{i}" for i in range(20)]


def test_a_bounded_number_runs_at_once():
    now = peak = 0
    lock = threading.Lock()

    def script(prompt):
        nonlocal now, peak
        with lock:
            now += 1
            peak = max(peak, now)
        threading.Event().wait(0.01)
        with lock:
            now -= 1
        return "x"

    echo.run_batch([(str(i),) for i in range(30)], backend=sgl.Mock(script), num_threads=4)
    assert 1 < peak <= 4


def test_leaving_a_batch_on_a_loop_ends_its_programs():
    waiting = threading.Semaphore(0)

    class Waiting(sgl.Mock):
        def generate(self, body):
            if body["input"][0]["text"] == "0":
                return super().generate(body)
            waiting.release()
            ended.wait(20)
            raise RuntimeError("aborted")

        def abort(self, rid):
            super().abort(rid)
            ended.set()

    ended, mock = threading.Event(), Waiting(["zero"])

    async def main():
        states = echo.arun_batch([(str(i),) for i in range(3)], backend=mock, num_threads=3)
        async for state in states:
            assert state["x"] == "zero"
            for _ in range(2):
                await asyncio.to_thread(waiting.acquire)
            break
        await states.aclose()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    assert ended.wait(5)


def test_items_may_come_from_an_iterator_of_the_callers_thread():
    threads, taken = set(), []

    def items():
        for i in range(40):
            threads.add(threading.current_thread())
            taken.append(i)
            yield {"word": str(i)}

    states = echo.run_batch(items(), backend=sgl.Mock(doubled), num_threads=2, generator_style=True)
    assert next(states)["x"] == "00"
    assert len(taken) <= 4
    assert [state["x"] for state in states] == [f"{i}{i}" for i in range(1, 40)]
    assert threads == {threading.current_thread()}


def test_an_iterator_that_raises_ends_the_batch():
    def items():
        yield {"word": "a"}
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        echo.run_batch(items(), backend=sgl.Mock(doubled))
    with pytest.raises(TypeError, match="word"):
        echo.run_batch(iter([{"wrod": "a"}]), backend=sgl.Mock(doubled))


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_generator_lets_go_of_what_it_has_given(program):
    """Memory is flat however many items there are: at most a window of states is alive."""
    alive: weakref.WeakSet[object] = weakref.WeakSet()

    def items():
        for i in range(600):
            yield {"word": str(i)}

    mock = sgl.Mock(lambda prompt: "x", is_instant=True)
    peak = 0
    for i, state in enumerate(
        program.run_batch(items(), backend=mock, num_threads=5, generator_style=True)
    ):
        alive.add(state)
        alive.add(state._branch)
        alive.add(state._run)
        if i % 100 == 99:
            gc.collect()
            peak = max(peak, len(alive))
    assert i == 599
    assert peak <= 3 * 3


def test_a_checkpoint_is_not_done_again(tmp_path):
    path = tmp_path / "batch.jsonl"
    items = [{"word": word} for word in ("a", "b", "bad", "d")]
    with pytest.raises(RuntimeError, match="no GPU"):
        echo.run_batch(items, backend=sgl.Mock(doubled), num_threads=1, checkpoint=path)
    mock = sgl.Mock(lambda prompt: prompt * 3)
    states = echo.run_batch(items, backend=mock, checkpoint=path)
    assert [state.ret_value for state in states] == ["AA", "BB", "BADBADBAD", "DDD"]
    assert [state.text() for state in states] == ["aaa", "bbb", "badbadbadbad", "dddd"]
    assert len(mock.calls) == 2
    assert states[0].get_meta_info("x")["prompt_tokens"] == 1
    assert states[0].explain().calls[0].name == "x"
    again = sgl.Mock()
    assert [s["x"] for s in echo.run_batch(items, backend=again, checkpoint=path)] == [
        s["x"] for s in states
    ]
    assert again.calls == []


def test_a_checkpoint_knows_items_by_their_arguments(tmp_path):
    path = tmp_path / "batch.jsonl"
    mock = sgl.Mock(["1", "2", "3", "4"])
    echo.run_batch([("a",), ("b",), ("b",)], backend=mock, num_threads=1, checkpoint=path)
    states = echo.run_batch(
        [("b",), ("c",), ("a",), ("b",)], backend=mock, num_threads=1, checkpoint=path
    )
    assert [state["x"] for state in states] == ["2", "4", "1", "3"]


def test_a_line_cut_short_counts_as_not_written(tmp_path):
    path = tmp_path / "batch.jsonl"
    echo.run_batch([("a",), ("b",)], backend=sgl.Mock(doubled), checkpoint=path, num_threads=1)
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    mock = sgl.Mock(doubled)
    states = echo.run_batch([("a",), ("b",)], backend=mock, checkpoint=path, num_threads=1)
    assert [state["x"] for state in states] == ["aa", "bb"]
    assert len(mock.calls) == 1
    assert len(path.read_bytes().splitlines()) == 3
    path.write_bytes(whole[:5])
    echo.run_batch([("a",)], backend=sgl.Mock(doubled), checkpoint=path)
    assert len(path.read_bytes().splitlines()) == 2


@pytest.mark.parametrize("content", ["precious notes\n", "precious", '{"a": 1}\n'])
def test_a_file_that_is_no_checkpoint_is_left_alone(tmp_path, content):
    path = tmp_path / "notes"
    path.write_text(content)
    with pytest.raises(ValueError, match="no checkpoint"):
        echo.run_batch([("a",)], backend=sgl.Mock(doubled), checkpoint=path)
    assert path.read_text() == content


def test_a_checkpoint_of_another_program_or_of_other_sampling_is_refused(tmp_path):
    path = tmp_path / "batch.jsonl"
    echo.run_batch([("a",)], backend=sgl.Mock(doubled), checkpoint=path)
    with pytest.raises(ValueError, match=r"no checkpoint of .*anecho"):
        anecho.run_batch([("a",)], backend=sgl.Mock(doubled), checkpoint=path)
    with pytest.raises(ValueError, match="no checkpoint of"):
        echo.run_batch([("a",)], backend=sgl.Mock(doubled), checkpoint=path, temperature=0)


def test_what_cannot_be_kept_says_so(tmp_path):
    @sgl.function
    def odd(s, word):
        return lambda: word

    with pytest.raises(sgl.ProgramError, match="pickled"):
        odd.run_batch([("a",)], backend=sgl.Mock(), checkpoint=tmp_path / "one")
    with pytest.raises(sgl.ProgramError, match="pickled"):
        echo.run_batch([(lambda: 1,)], backend=sgl.Mock(), checkpoint=tmp_path / "two")


def test_an_error_is_not_kept_but_tried_again(tmp_path):
    path = tmp_path / "batch.jsonl"
    options = {"checkpoint": path, "return_exceptions": True}
    [error] = echo.run_batch([("bad",)], backend=sgl.Mock(doubled), **options)
    assert isinstance(error, RuntimeError)
    [state] = echo.run_batch([("bad",)], backend=sgl.Mock(["fine"]), **options)
    assert state["x"] == "fine"


def test_errors_of_backends_can_be_pickled():
    error = sgl.BackendError(429, "busy", "later", "n", 2.0)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.retry_after) == (str(error), 2.0)


def test_progress_of_a_batch_that_fails_ends_its_line(capsys):
    with pytest.raises(RuntimeError):
        echo.run_batch(
            iter([("a",), ("bad",)]), backend=sgl.Mock(doubled), progress_bar=True, num_threads=1
        )
    last = capsys.readouterr().err
    assert last.endswith("/s\n")
    assert "/?" in last


def test_a_progress_bar_that_cannot_be_shown_ends_nothing(monkeypatch):
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr("sys.stderr", closed)

    @sgl.function
    def program(s):
        s += "a" + sgl.gen("x")

    mock = sgl.Mock(["b"] * 3)
    assert len(program.run_batch([{}] * 3, backend=mock, progress_bar=True)) == 3
