"""Which calls follow each other at once, and which programs are known."""

from __future__ import annotations

import radixserve.lang as sgl
from radixserve.programs.following import followers
from radixserve.programs.request import MAX_KEPT, ProgramLimits, is_kept, read_job


@sgl.function
def judged(s, essay):
    s += sgl.user(essay)
    s += sgl.assistant(sgl.gen("first"))
    children = s.fork(3)
    for child in children:
        child += sgl.user("Judge.") + sgl.assistant(sgl.gen("judgement"))
    s += "".join(child["judgement"] for child in children) + sgl.gen("summary")
    s += "Grade: " + sgl.select("grade", ["a", "b"])


def body(graph):
    return {"program": graph, "arguments": {"essay": "x"}}


def test_a_call_knows_how_many_begin_when_it_has_ended() -> None:
    job = read_job(body(judged.compile().graph), ProgramLimits())
    # The three judgements stand at 1.0.0, 1.1.0 and 1.2.0; the summary needs all of them.
    assert job.followers == {"0": 3, "1.2.0": 1, "2": 1}
    assert followers(job.graph) == job.followers


def test_places_are_those_of_a_run() -> None:
    mock = sgl.Mock(["one", "two", "two", "two", "three", "a"])
    reports = judged.run("x", backend=mock).explain().calls
    job = read_job(body(judged.compile().graph), ProgramLimits())
    assert {report.parent for report in reports} - {""} <= {each.call for each in reports}
    assert job.followers.keys() <= {each.call for each in reports}


def test_a_program_is_known_once_it_has_been_read() -> None:
    limits = ProgramLimits()
    graphs = [judged.compile().graph | {"name": f"known{i}"} for i in range(MAX_KEPT + 1)]
    assert not is_kept(body(graphs[0]), limits)
    first = read_job(body(graphs[0]), limits)
    assert is_kept(body(graphs[0]), limits)
    graphs[0]["steps"] = []
    assert len(first.graph.steps) > 0
    for graph in graphs[1:]:
        read_job(body(graph), limits)
    again = judged.compile().graph | {"name": "known0"}
    assert not is_kept(body(again), limits), "the oldest makes room"
    assert is_kept(body(graphs[-1]), limits)
    for nonsense in (None, [], {}, {"program": 3}, {"program": {"a": object()}}):
        assert not is_kept(nonsense, limits)
