"""Recording a program's calls and replaying them."""

import asyncio
import json

import pytest

import radixserve.lang as sgl


@sgl.function
def program(s, word="q"):
    s += word + sgl.gen("x")
    g = s.fork(2)
    g += lambda i: f"{i}" + sgl.gen("y")
    g.join()
    s += sgl.select("z", ["a", "b"])


def recorded(**options):
    recorder = sgl.Recorder(sgl.Mock(lambda prompt: prompt[-1] * 2))
    return recorder, program.run(backend=recorder, **options)


@pytest.mark.parametrize("record_streamed", [False, True])
@pytest.mark.parametrize("replay_streamed", [False, True])
def test_a_replay_gives_what_was_recorded(record_streamed, replay_streamed):
    recorder, first = recorded(stream=record_streamed)
    first.sync()
    replay = sgl.Replay(recorder)
    again = program.run(backend=replay, stream=replay_streamed)
    again.sync()
    assert again.text() == first.text()
    assert (again["y"], again["z"]) == (first["y"], first["z"])
    assert again.get_meta_info("z") == first.get_meta_info("z")
    assert replay.get_server_info()["calls_left"] == 0


def test_a_recording_is_a_file(tmp_path):
    path = tmp_path / "calls.jsonl"
    recorder = sgl.Recorder(sgl.Mock(lambda prompt: "x"), path)
    first = program.run(backend=recorder)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["body"]["program"]["call"] for line in lines] == [
        call.body["program"]["call"] for call in recorder.calls
    ]
    assert len(lines) == 4
    assert program.run(backend=sgl.Replay(path)).text() == first.text()


def test_a_replay_on_a_loop_and_in_a_batch():
    recorder = sgl.Recorder(sgl.Mock(lambda prompt: prompt[-1] * 2))
    words = [("a",), ("b",), ("a",)]
    first = program.run_batch(words, backend=recorder)
    again = program.run_batch(words, backend=sgl.Replay(recorder))
    assert [state.text() for state in again] == [state.text() for state in first]

    async def main():
        return await program.arun("a", backend=sgl.Replay(recorder.calls), stream=False)

    assert asyncio.run(main()).text() == first[0].text()


def test_another_call_says_what_was_recorded():
    recorder, _ = recorded()
    with pytest.raises(sgl.BackendError, match=r"call 0 asks .*'w'.* recorded was .*'q'"):
        program.run("w", backend=sgl.Replay(recorder))
    replay = sgl.Replay(recorder)
    program.run(backend=replay)
    with pytest.raises(sgl.BackendError, match="recorded"):
        program.run(backend=replay, retries=3)


@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_recorded_too(stream):
    class Failing(sgl.Mock):
        def generate(self, body):
            raise sgl.BackendError(503, "busy", "later", "queue")

        def stream(self, body):
            yield {"text": "h", "output_ids": [], "meta_info": {"finish_reason": None}}
            raise sgl.BackendError(503, "busy", "later", "queue")

    recorder = sgl.Recorder(Failing())
    for make in (lambda: recorder, lambda: sgl.Replay(recorder)):
        backend = make()
        with pytest.raises(sgl.BackendError, match="later") as caught:
            program.run(backend=backend, stream=stream).sync()
        assert (caught.value.status, caught.value.param) == (503, "queue")


def test_a_recorder_passes_everything_on():
    mock = sgl.Mock(["x"])
    recorder = sgl.Recorder(mock)
    recorder.abort("r")
    recorder.flush_cache()
    assert mock.aborted == ["r"]
    assert recorder.get_server_info() == mock.get_server_info()
