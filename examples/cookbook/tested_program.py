"""Testing a program without a model: scripts, made-up values, recording and replay.

python examples/cookbook/tested_program.py
"""

from __future__ import annotations

import radixserve as rs


@rs.function
def triage(s, message):
    s += rs.user(f"Is this urgent? {message}")
    s += rs.assistant(rs.gen("urgent", schema=bool))
    if not s["urgent"]:
        return None
    s += rs.user("Who should come?")
    s += rs.assistant(rs.gen("who", choice=["doctor", "plumber"]))
    return s["who"]


def test_what_is_urgent_gets_somebody():
    scripted = rs.Mock({"Is this urgent?": "true", "Who should come?": "plumber"})
    assert triage.run("The cellar is flooded!", backend=scripted).ret_value == "plumber"
    assert len(scripted.calls) == 2


def test_what_is_not_urgent_gets_nobody():
    state = triage.run("Nice weather.", backend=rs.Mock(["false"]))
    assert state.ret_value is None


def test_any_answer_that_the_model_may_give_is_handled():
    for seed in range(20):  # the mock makes up values that fit
        assert triage.run("?", backend=rs.Mock(seed=seed)).ret_value in (None, "doctor", "plumber")


def test_a_recorded_run_gives_the_same_again():
    recorder = rs.Recorder(rs.Mock(seed=2))
    first = triage.run("Smoke in the kitchen", backend=recorder)
    again = triage.run("Smoke in the kitchen", backend=rs.Replay(recorder))
    assert first.text() == again.text()


def main(_=None):
    tests = [each for name, each in globals().items() if name.startswith("test_")]
    for test in tests:
        test()
        print("passed:", test.__name__.replace("_", " "))
    return len(tests)


if __name__ == "__main__":
    main()
