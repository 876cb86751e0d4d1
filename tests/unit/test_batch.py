"""Batches over a scripted gateway: shapes of lines, order, failures, going on."""

from __future__ import annotations

import asyncio
import io
import json
from collections import Counter

import pytest

from radixserve.batch import answers
from radixserve.batch.asks import Defaults
from radixserve.batch.lines import read_lines
from radixserve.batch.progress import Progress, Tally
from radixserve.batch.run import Batch, Task
from radixserve.errors import ConfigError, EngineDead, QueueFull
from radixserve.wire.messages import Gauges
from radixserve.wire.params import Constraint
from radixserve.wire.seeds import derive_seed
from tests.api.scripted import ScriptedGateway, make_renderer

LIMIT = 2000


@pytest.fixture(scope="module")
def renderer(tmp_path_factory):
    return make_renderer(tmp_path_factory.mktemp("tokenizer"))


def bytes_of(rows):
    """Rows as lines; text stands for itself."""
    return "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows).encode()


def run(renderer, source, output=None, *, window=8, gateway=None, **defaults):
    """The lines of the output, and the tally."""
    output = io.BytesIO() if output is None else output
    gateway = gateway or ScriptedGateway(renderer)
    task = Task(defaults=Defaults(**defaults), window=window, limit=LIMIT, default_max_tokens=16)
    kept = answers.keep_answers(output, read_lines(io.BytesIO(source), LIMIT), LIMIT)
    tally = Tally(kept=kept.count, kept_failed=kept.failed, read=kept.read)
    progress = Progress(io.StringIO(), tally, len(source))

    async def go():
        await Batch(task, gateway, tally).run(kept.rest, output, progress)

    asyncio.run(go())
    return [json.loads(line) for line in output.getvalue().splitlines()], tally


def test_each_shape_of_line(renderer):
    gateway = ScriptedGateway(renderer, ["the quick"])
    chat = {"messages": [{"role": "user", "content": "the cat"}]}
    rows = [
        {"prompt": "the", "id": "a"},
        {**chat, "max_tokens": 1},
        {"text": "the cat", "id": 3, "source": "somewhere"},
        {"custom_id": "c", "method": "POST", "url": "/v1/completions", "body": {"prompt": "the"}},
        {"custom_id": "d", "method": "POST", "url": "/v1/chat/completions", "body": chat},
    ]
    found, tally = run(renderer, bytes_of(rows), gateway=gateway)
    assert [line.get("id") for line in found[:3]] == ["a", None, 3]
    assert found[1]["line"] == 2
    assert [line["text"] for line in found[:3]] == ["the quick", "the", "the quick"]
    assert [line["finish_reason"] for line in found[:3]] == ["stop", "length", "stop"]
    assert found[0]["usage"]["completion_tokens"] > 1
    assert [line["custom_id"] for line in found[3:]] == ["c", "d"]
    assert all(line["error"] is None for line in found[3:])
    bodies = [line["response"]["body"] for line in found[3:]]
    assert [line["response"]["status_code"] for line in found[3:]] == [200, 200]
    assert bodies[0]["object"] == "text_completion"
    assert bodies[1]["choices"][0]["message"]["content"] == "the quick"
    assert bodies[1]["id"].endswith(found[4]["response"]["request_id"])
    # The record is the chat that the other lines spell out.
    prompts = Counter(request.prompt for request in gateway.requests)
    assert sorted(prompts.values()) == [2, 3]
    assert (tally.answered, tally.cut, tally.failed.total()) == (5, 1, 0)


def test_failed_lines_are_named_and_the_run_goes_on(renderer):
    openai = {"custom_id": "x", "method": "POST", "url": "/v1/completions", "body": {"prompt": "t"}}
    rows = [
        "nonsense",
        "[1]",
        '{"prompt": "the", "prompt": "cat"}',
        {"prompt": "q " * 600, "id": "long prompt"},
        json.dumps({"prompt": "the " * 900}),
        {"id": "none"},
        {"prompt": "the", "text": "the"},
        {"prompt": "the", "foo": 1},
        {"prompt": "the", "temperature": "hot"},
        {"prompt": "the", "stream": True},
        {"prompt": "the", "n": 2},
        {"prompt": "the", "id": [1]},
        {**openai, "url": "/v1/embeddings"},
        {**openai, "custom_id": 7},
        {**openai, "method": "GET"},
        {**openai, "body": {"prompt": "t", "model": "other"}},
        {**openai, "extra": 1},
        {"prompt": "the", "id": "good"},
    ]
    found, tally = run(renderer, bytes_of(rows))
    assert len(found) == len(rows)
    codes = [line["error"]["code"] for line in found[:12]]
    assert codes == [
        "invalid_json",
        "invalid_json",
        "invalid_json",
        "context_length_exceeded",
        "line_too_long",
        "invalid_request",
        "invalid_request",
        "unknown_parameter",
        "invalid_request",
        "invalid_request",
        "invalid_request",
        "invalid_request",
    ]
    assert found[0]["line"] == 1
    assert found[3]["id"] == "long prompt"
    assert found[7]["error"]["param"] == "foo"
    replies = [line["response"] for line in found[12:17]]
    assert [reply["status_code"] for reply in replies] == [400, 400, 400, 404, 400]
    assert replies[3]["body"]["error"]["code"] == "model_not_found"
    assert found[11]["error"]["param"] == "id"
    assert found[13]["custom_id"] == 7
    assert found[17]["text"] == "the quick brown fox"
    assert tally.answered == 1
    assert tally.failed == Counter(codes + ["invalid_request"] * 3) + Counter(
        ["model_not_found", "unknown_parameter"]
    )


def test_what_lines_do_not_say_comes_from_the_command_line(renderer):
    gateway = ScriptedGateway(renderer)
    rows = [
        {"prompt": "the"},
        {"prompt": "the", "temperature": 0.25, "max_completion_tokens": 3, "seed": 5},
        {"prompt": "the", "temperature": None},
    ]
    fields = {"temperature": 0.5, "max_tokens": 2, "stop": ["zz"]}
    found, _ = run(renderer, bytes_of(rows), gateway=gateway, fields=fields, seed=9, window=1)
    params = [request.params for request in gateway.requests]
    assert [p.temperature for p in params] == [0.5, 0.25, 0.5]
    assert [p.max_new_tokens for p in params] == [2, 3, 2]
    assert [p.seed for p in params] == [derive_seed(9, 1), 5, derive_seed(9, 3)]
    assert all(p.stop == ("zz",) for p in params)
    assert [line["usage"]["completion_tokens"] for line in found] == [2, 3, 2]


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint(kind="json_schema", value='{"const":1}', whitespace="bounded"),
        Constraint(kind="regex", value="a+"),
        Constraint(kind="ebnf", value='root ::= "a"'),
        Constraint(kind="choice", value='["a","b"]'),
    ],
)
def test_a_constraint_holds_for_lines_without_their_own(renderer, constraint):
    gateway = ScriptedGateway(renderer, ["1"])
    chat = {"messages": [{"role": "user", "content": "the"}]}
    rows = [{"prompt": "the"}, chat, {"prompt": "the", "choice": ["x"]}]
    options = {} if constraint.whitespace == "fixed" else {"whitespace": constraint.whitespace}
    found, tally = run(
        renderer,
        bytes_of(rows),
        gateway=gateway,
        constraint=constraint,
        options=options,
        window=1,
    )
    assert tally.answered == 3
    bound = [request.constraint for request in gateway.requests]
    assert bound[:2] == [constraint] * 2
    assert bound[2].kind == "choice"
    assert ("value" in found[0]) == (constraint.kind == "json_schema")


def test_violations_are_told_where_a_schema_is_only_validated(renderer):
    gateway = ScriptedGateway(renderer, ["10"])
    found, tally = run(
        renderer,
        bytes_of([{"prompt": "the"}]),
        gateway=gateway,
        constraint=Constraint(kind="json_schema", value='{"type":"integer","const":1}'),
        options={"constraint_mode": "validate"},
    )
    assert tally.answered == 1
    assert found[0]["value"] == 10
    assert found[0]["constraint_violations"]


def test_a_template_wraps_records(renderer):
    gateway = ScriptedGateway(renderer)
    rows = [{"text": "the cat", "lang": "en", "tags": ["a"]}, {"lang": "en"}]
    template = 'Return {"a": 1} for {text} in {lang} {tags}'
    found, _ = run(renderer, bytes_of(rows), gateway=gateway, template=template, window=1)
    said = renderer.tokenizer.decode(memoryview(gateway.requests[0].prompt).cast("i").tolist())
    assert 'user\nReturn {"a": 1} for the cat in en ["a"]' in said
    assert found[1]["error"]["param"] == "text"


def test_without_a_chat_template_records_are_prompts(tmp_path):
    renderer = make_renderer(tmp_path, chat_template=None)
    gateway = ScriptedGateway(renderer)
    rows = [{"text": "the cat"}, {"prompt": "the cat"}]
    found, _ = run(renderer, bytes_of(rows), gateway=gateway)
    assert found[0]["text"] == found[1]["text"]
    assert gateway.requests[0].prompt == gateway.requests[1].prompt


class Uneven(ScriptedGateway):
    """Each fourth call ends after one that came later; keeps how many ran at once."""

    def __init__(self, renderer):
        super().__init__(renderer)
        self.came = self.inside = self.most = self.latest = 0
        self.ended = asyncio.Condition()

    async def submit(self, request):
        self.came += 1
        number = self.came
        self.inside += 1
        self.most = max(self.most, self.inside)
        async with self.ended:
            await self.ended.wait_for(lambda: number % 4 != 1 or self.latest > number)
        async for chunk in super().submit(request):
            yield chunk
        self.inside -= 1
        async with self.ended:
            self.latest = max(self.latest, number)
            self.ended.notify_all()


def test_answers_keep_the_order_within_a_window(renderer):
    gateway = Uneven(renderer)
    rows = [{"prompt": "the", "id": i} for i in range(60)]
    found, _ = run(renderer, bytes_of(rows), gateway=gateway, window=7)
    assert [line["id"] for line in found] == list(range(60))
    assert 1 < gateway.most <= 7


class Busy(ScriptedGateway):
    """Refuses each second request for the first time."""

    refused = 0

    async def submit(self, request):
        self.refused += 1
        if self.refused % 2 and self.refused < 6:
            raise QueueFull("the queue is full")
        async for chunk in super().submit(request):
            yield chunk


def test_a_full_queue_is_waited_for(renderer):
    gateway = Busy(renderer)
    found, tally = run(
        renderer, bytes_of([{"prompt": "the", "id": i} for i in range(4)]), gateway=gateway
    )
    assert [line["text"] for line in found] == ["the quick brown fox"] * 4
    assert tally.failed.total() == 0
    assert gateway.refused > 4


class Dying(ScriptedGateway):
    async def submit(self, request):
        if len(self.requests) == 5:
            self.alive = False
        async for chunk in super().submit(request):
            yield chunk


def test_a_dead_engine_ends_the_run_and_the_next_one_goes_on(renderer):
    source = bytes_of([{"prompt": "the", "id": i} for i in range(9)])
    output = io.BytesIO()
    with pytest.raises(EngineDead):
        run(renderer, source, output, gateway=Dying(renderer), window=2)
    first = output.getvalue()
    answered = first.count(b"\n")
    assert answered in (4, 5)  # the fifth may be in flight beside the one that ends the engine
    output.seek(0)
    found, tally = run(renderer, source, output)
    assert output.getvalue().startswith(first)
    assert [line["id"] for line in found] == list(range(9))
    assert (tally.kept, tally.answered) == (answered, 9 - answered)


@pytest.mark.parametrize("torn", [b"", b"{", b'{"id":3,"te', b'{"id":3,"text":"th"}'])
def test_a_torn_end_is_cut_off(renderer, torn):
    source = bytes_of([{"prompt": "the", "id": i} for i in range(6)])
    whole = io.BytesIO()
    run(renderer, source, whole)
    kept = b"".join(whole.getvalue().splitlines(keepends=True)[:3])
    output = io.BytesIO(kept + torn)
    found, tally = run(renderer, source, output)
    assert [line["id"] for line in found] == [*range(6)]
    assert output.getvalue().startswith(kept)
    assert (tally.kept, tally.answered) == (3, 3)


@pytest.mark.parametrize(
    "output",
    [
        b'{"id":8}\n',
        b'{"id":0}\n{"id":2}\n',
        b'{"id":0}\nnonsense\n{"id":1}\n',
        b"[]\n",
        b"my thesis",
        b"my thesis\n",
        b'{"id":1,"te',
        b'{"id":0}\n{"line":1,"te',
        b'{"id":0}\n{"id":1}\n{"id":2}\n',
    ],
)
def test_answers_to_something_else_are_left_alone(output):
    file = io.BytesIO(output)
    lines = read_lines(io.BytesIO(bytes_of([{"id": 0}, {"id": 1}])), LIMIT)
    with pytest.raises(ConfigError, match="of the output"):
        answers.keep_answers(file, lines, LIMIT)
    assert file.getvalue() == output


def test_lines_are_read_in_bounded_memory():
    class Counting(io.BytesIO):
        largest = 0

        def readline(self, size=-1):
            found = super().readline(size)
            self.largest = max(self.largest, len(found))
            return found

    rows = b'\xef\xbb\xbf{"a": 1}\r\n\n   \n' + b"x" * 50_000 + b'\n{"b": 2}\n{"c": 3}'
    file = Counting(rows)
    lines = list(read_lines(file, 100))
    assert file.largest == 101
    assert [(line.number, line.raw) for line in lines] == [
        (1, b'{"a": 1}'),
        (4, None),
        (5, b'{"b": 2}'),
        (6, b'{"c": 3}'),
    ]
    assert lines[-1].end == len(rows)


def test_an_output_is_written_by_one_run_at_a_time(tmp_path):
    path = str(tmp_path / "out.jsonl")
    with answers.open_output(path, overwrite=False) as file:
        file.write(b"{}\n")
        with pytest.raises(ConfigError, match="another run"):
            answers.open_output(path, overwrite=True)
    with answers.open_output(path, overwrite=False) as file:
        assert file.read() == b"{}\n"
    with answers.open_output(path, overwrite=True) as file:
        assert file.read() == b""
    with pytest.raises(ConfigError, match="cannot write"):
        answers.open_output(str(tmp_path / "nowhere" / "out"), overwrite=False)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_shows_the_rate_and_what_was_reused():
    now = [0.0]
    tally = Tally(kept=10, answered=30, cut=1, failed=Counter(invalid_json=2), read=500)
    tally.gauges = Gauges(generated_tokens=1000, prompt_tokens=400, computed_tokens=100)
    screen = Terminal()
    bar = Progress(screen, tally, 1000, clock=lambda: now[0])
    now[0] = 10.0
    bar.show()
    shown = screen.getvalue()
    assert shown.startswith("\r[############............]  50%  42 lines")
    assert "100 tokens/s  75% reused  2 failed" in shown
    assert bar.summary() == (
        "30 answered, 2 failed (invalid_json 2), 1 cut at the token limit, 10 kept from before; "
        "1000 tokens in 10.0 s, 100 tokens/s, 75% of 400 prompt tokens reused"
    )
    log = io.StringIO()
    quiet = Progress(log, tally, None, clock=lambda: now[0])
    for second in range(11, 32):
        now[0] = float(second)
        quiet.show()
    assert log.getvalue().count("42 lines") == 2
