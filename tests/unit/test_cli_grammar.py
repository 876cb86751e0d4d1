"""`radixserve grammar check`: what it prints and how it exits."""

from __future__ import annotations

import io
import json

import pytest

from radixserve.cli import main

GOOD = {"type": "object", "properties": {"a": {"allOf": [{"type": "string"}]}}}
BAD = {"items": {"pattern": "(?=a)"}}


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["grammar", "check", *arguments])
    return ended.value.code


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "schema.json"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


def test_an_accepted_schema(file, capsys):
    assert run(file(json.dumps(GOOD))) == 0
    out = capsys.readouterr().out
    assert "/properties/a/allOf" in out
    assert "rewritten" in out
    assert out.splitlines()[-1] == "accepted"


def test_a_refused_schema(file, capsys):
    assert run(file(json.dumps(BAD))) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "refused"
    assert any(line.startswith("/items/pattern") and "look-around" in line for line in lines)


@pytest.mark.parametrize("text", ["{", "", b'"\xff"', "[" * 100_000])
def test_what_is_no_json_cannot_be_read(file, capsys, text):
    assert run(file(text)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "cannot read" in said.err


def test_a_missing_file(capsys):
    assert run("/nowhere/schema.json") == 2
    assert "/nowhere/schema.json" in capsys.readouterr().err


def test_standard_input_and_json(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(BAD)))
    assert run("-", "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert report["accepted"] is False
    assert {"pointer", "keyword", "verdict", "note"} == report["findings"][-1].keys()
    assert report["findings"][-1]["pointer"] == "/items/pattern"


def test_usage(capsys):
    for arguments in ([], ["nothing"], ["grammar"], ["grammar", "check"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
        assert "usage: radixserve" in capsys.readouterr().err
