"""Every example of the cookbook runs on the tiny model and returns what it promises."""

import importlib.util
import pathlib
import sys

import pytest

FOLDER = pathlib.Path(__file__).resolve().parent.parent.parent / "examples" / "cookbook"

CHECKS = {
    "few_shot_labels": lambda rows: all(0 < sure <= 1 for _, _, sure in rows) and len(rows) == 3,
    "typed_records": lambda lines: len(lines) == 3 and all(1 <= li.amount <= 1000 for li in lines),
    "react_agent": lambda state: "Answer:" in state.text() and 1 <= state.ret_value <= 3,
    "tree_of_thought": lambda state: len(state["plan"]) == 3 and state["step"] is not None,
    "skeleton_of_thought": lambda state: len(state.ret_value) == 3,
    "judge": lambda state: all(1 <= grade <= 9 for grade in state.ret_value.values()),
    "shared_documents": lambda counts: counts[1] > counts[0] / 4,
    "self_consistency": lambda state: sum(votes for _, votes in state.ret_value) == 7,
    "async_service": lambda told: len(told[1]) == 5,
    "long_batch": lambda counts: counts == (12, 0),
    "tools": lambda state: (
        [each["role"] for each in state.messages()][:4] == ["system", "user", "assistant", "tool"]
    ),
    "tested_program": lambda count: count == 4,
}


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # where pydantic looks up what annotations name
    spec.loader.exec_module(module)
    return module


def test_every_example_is_checked():
    assert {path.stem for path in FOLDER.glob("*.py")} == set(CHECKS)


@pytest.mark.parametrize("name", CHECKS)
def test_an_example_runs(tiny_engine, tmp_path, name, capsys):
    module = load(FOLDER / f"{name}.py")
    again = {"folder": tmp_path} if name == "long_batch" else {}
    assert CHECKS[name](module.main(tiny_engine, **again))
    assert capsys.readouterr().out
    if again:
        before = tiny_engine.gauges().requests
        assert CHECKS[name](module.main(tiny_engine, **again))
        assert tiny_engine.gauges().requests == before
