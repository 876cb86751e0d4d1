"""`radixserve batch` as its users meet it: a process, two files, a kill."""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import sys
import time

import jsonschema
import pytest

from tests.e2e.test_process import wait_until

DOCUMENTS = 200


def command(model, source, output, *flags):
    fixed = ["--dtype", "float32", "--threads", "1", "--kv-tokens", "8192"]
    return [
        *(sys.executable, "-m", "radixserve.cli", "batch", str(source), str(output)),
        *("--model", str(model), *fixed, *map(str, flags)),
    ]


def run(model, source, output, *flags, **options):
    return subprocess.run(
        command(model, source, output, *flags),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        **options,
    )


def rows_of(path: pathlib.Path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def documents(path: pathlib.Path, count: int) -> pathlib.Path:
    """Every eleventh is one that must fail."""
    with path.open("w") as file:
        for i in range(count):
            row = {"id": f"doc-{i}", "text": f"the quick brown fox number {i} and the lazy dog"}
            if i % 11 == 5:
                row = {"id": f"doc-{i}", "prompt": "the", "top_p": 7}
            file.write(json.dumps(row) + "\n")
    return path


def test_200_documents_killed_half_way_and_resumed(tiny_model, tmp_path) -> None:
    source = documents(tmp_path / "in.jsonl", DOCUMENTS)
    output = tmp_path / "out.jsonl"
    # Few at a time and long, so that the signals come before the end.
    flags = ("--max-tokens", 40, "--seed", 3, "--prompt-template", "Read: {text}", "--window", 4)

    def lines() -> int:
        return output.read_bytes().count(b"\n") if output.exists() else 0

    def stopped_at(count: int, number: signal.Signals) -> tuple[int, str]:
        """Run until `count` lines are out, then send the signal: (exit status, stderr)."""
        going = subprocess.Popen(
            command(tiny_model, source, output, *flags), stderr=subprocess.PIPE, text=True
        )
        try:
            wait_until(lambda: lines() >= count, seconds=120)
        finally:
            going.send_signal(number)
            _, said = going.communicate(timeout=60)
        return going.returncode, said

    assert stopped_at(40, signal.SIGKILL)[0] == -signal.SIGKILL
    before = output.read_bytes()
    before = before[: before.rfind(b"\n") + 1]
    assert 40 <= before.count(b"\n") < DOCUMENTS - 60
    output.write_bytes(before + b'{"id":"doc-')  # as a kill amid a write leaves it
    status, said = stopped_at(before.count(b"\n") + 30, signal.SIGINT)
    assert status == 130
    assert f"{lines()} lines are answered; the same command goes on from there" in said
    assert "Traceback" not in said
    assert output.read_bytes().startswith(before)
    before = output.read_bytes()
    second = run(tiny_model, source, output, *flags)
    assert second.returncode == 1, second.stderr
    assert "kept from before" in second.stderr
    assert "tokens/s" in second.stderr
    assert "prompt tokens reused" in second.stderr
    assert output.read_bytes().startswith(before)
    found = rows_of(output)
    assert [row["id"] for row in found] == [f"doc-{i}" for i in range(DOCUMENTS)]
    assert [i for i, row in enumerate(found) if "error" in row] == list(range(5, DOCUMENTS, 11))
    again = run(tiny_model, source, output, *flags)
    assert again.returncode == 1  # some have failed, whenever that was
    assert again.stderr.endswith("200 lines, all answered before\n")
    assert rows_of(output) == found
    reused = float(second.stderr.rsplit("tokens/s, ", 1)[1].split("%")[0])
    assert reused > 20  # of the template and the shared beginning


def test_standard_input_and_openai_lines(tiny_model, tmp_path) -> None:
    body = {"messages": [{"role": "user", "content": "the cat"}], "max_tokens": 4}
    row = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    output = tmp_path / "out.jsonl"
    ran = run(tiny_model, "-", output, "--served-name", "tiny", input=json.dumps(row))
    assert ran.returncode == 0, ran.stderr
    (found,) = rows_of(output)
    assert found["custom_id"] == "a"
    reply = found["response"]["body"]
    assert reply["model"] == "tiny"
    assert reply["usage"]["completion_tokens"] <= 4


def test_every_answer_matches_the_schema(tiny_model, tmp_path) -> None:
    source = tmp_path / "in.jsonl"
    form = {"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": "</a>"}
    own = [
        {"prompt": "the", "choice": ["fox", "dog"]},
        {"prompt": "the", "structural_tag": {"format": form}},
    ]
    rows = [{"text": f"the fox {i}"} for i in range(20)]
    source.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *own]))
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "is_dog": {"type": "boolean"}},
        "required": ["name", "is_dog"],
        "additionalProperties": False,
    }
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    output = tmp_path / "out.jsonl"
    ran = run(tiny_model, source, output, "--schema", tmp_path / "schema.json", "--max-tokens", 60)
    assert ran.returncode == 0, ran.stderr
    *found, chosen, tagged = rows_of(output)
    assert len(found) == 20
    for row in found:
        jsonschema.validate(row["value"], schema)
        assert json.loads(row["text"]) == row["value"]
    assert chosen["text"] in ("fox", "dog")
    assert tagged["text"].startswith("<a>")
    assert tagged["text"].index("</a>") == len(tagged["text"]) - 4


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--schema", "SCHEMA"], "look-around"),
        (["--schema", "/nowhere.json"], "/nowhere.json"),
        (["--regex", "a("], "unfinished group"),
        (["--temperature", "-1"], "temperature"),
        (["--prompt-template", "no field"], "names no field"),
        (["--window", "0"], "--window"),
        (["--whitespace", "bounded"], "only with --schema"),
        (["--ebnf", "LATIN"], "utf-8"),
        (["--kv-tokens", "3"], "--kv-tokens"),
    ],
)
def test_what_no_line_could_be_answered_with_is_said_at_once(tmp_path, flags, said) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "string", "pattern": "(?=a)b"}')
    latin = tmp_path / "latin"
    latin.write_bytes(b"root ::= \xe9")
    files = {"SCHEMA": str(schema), "LATIN": str(latin)}
    flags = [files.get(flag, flag) for flag in flags]
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "x"}\n')
    began = time.monotonic()
    ran = run("nowhere", source, tmp_path / "out.jsonl", *flags)
    assert ran.returncode == 2
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr
    assert time.monotonic() - began < 60


def test_a_missing_input_and_a_foreign_output(tiny_model, tmp_path) -> None:
    output = tmp_path / "out.jsonl"
    ran = run(tiny_model, tmp_path / "nothing.jsonl", output)
    assert ran.returncode == 2
    assert "nothing.jsonl" in ran.stderr
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "x"}\n')
    for text in ("my thesis\n", "my thesis"):
        output.write_text(text)
        ran = run(tiny_model, source, output)
        assert ran.returncode == 2
        assert output.read_text() == text
    assert run(tiny_model, source, source, "--overwrite").returncode == 2
    assert source.read_text() == '{"prompt": "x"}\n'
