"""`radixserve batch`: a file of requests, without a server.

Owns: its arguments and exit codes, the files. Must not know: how a line is answered.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import pathlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, get_args

from radixserve.config.flags import GROUPS, add_flags, from_args
from radixserve.errors import ConfigError, RadixServeError
from radixserve.native.constraint import Mode
from radixserve.wire.params import Constraint, SamplingParams, Whitespace

if TYPE_CHECKING:
    from radixserve.batch.progress import Tally
    from radixserve.batch.run import Task
    from radixserve.config.schema import Config

SUMMARY = "answer a file of requests: JSON lines in, JSON lines out"
ANSWERED, SOME_FAILED, NOT_RUN, INTERRUPTED = 0, 1, 2, 130
DESCRIPTION = """Answer each line of INPUT with one line of OUTPUT, in the same order.

A line is {"prompt": ..}, {"messages": ..} or {"text": ..}, with an "id" if you like, or a line of
OpenAI's batches ({"custom_id", "method", "url", "body"}). A run that was stopped goes on where its
OUTPUT ends when it is started again. Exits with 0 when every line was answered, 1 when some failed
(their lines say why), 2 when the run could not be made or did not reach its end, 130 after ctrl-c.
"""

# Flags of sampling: (name in a body, kind, help). Only those that are given are sent.
SAMPLING: tuple[tuple[str, type, str], ...] = (
    ("max_tokens", int, "output tokens of a line at most (default: 1024)"),
    ("temperature", float, "0 takes the likeliest token each time (default: 1)"),
    ("top_p", float, "likeliest tokens that hold so much probability"),
    ("top_k", int, "so many likeliest tokens"),
    ("min_p", float, "tokens at least so likely, measured by the likeliest"),
    ("frequency_penalty", float, "per use of a token so far"),
    ("presence_penalty", float, "for tokens used so far"),
    ("repetition_penalty", float, "divides logits of tokens seen so far"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("input", metavar="INPUT", help="JSON lines; - reads standard input")
    parser.add_argument("output", metavar="OUTPUT", help="JSON lines, made or gone on with")
    parser.add_argument("--overwrite", action="store_true", help="begin OUTPUT anew")
    parser.add_argument(
        "--window", type=int, default=256, metavar="N", help="lines in flight (default: 256)"
    )
    parser.add_argument(
        "--prompt-template",
        metavar="TEXT",
        help="prompt of lines with a text: {text} and {other fields} stand for those of the line; "
        "@FILE reads a file",
    )
    _add_constraints(parser)
    sampling = parser.add_argument_group("sampling", "what holds where a line says nothing itself")
    for name, kind, said in SAMPLING:
        flag = "--" + name.replace("_", "-")
        sampling.add_argument(flag, type=kind, help=said, metavar="N" if kind is int else "X")
    sampling.add_argument(
        "--stop", action="append", metavar="TEXT", help="ends an output; may be given several times"
    )
    sampling.add_argument(
        "--seed", type=int, metavar="N", help="each line draws from a seed derived from this one"
    )
    add_flags(parser, [group for group in GROUPS if group != "http"])


def _add_constraints(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("constraint", "what every output must match")
    kinds = group.add_mutually_exclusive_group()
    kinds.add_argument("--schema", metavar="FILE", help="a JSON Schema")
    kinds.add_argument("--regex", metavar="TEXT", help="a regular expression")
    kinds.add_argument("--ebnf", metavar="FILE", help="a grammar in EBNF")
    kinds.add_argument(
        "--choice", action="append", metavar="TEXT", help="one of these texts; given several times"
    )
    group.add_argument(
        "--whitespace", choices=get_args(Whitespace), help="blanks in JSON (default: fixed)"
    )
    group.add_argument(
        "--constraint-mode",
        choices=get_args(Mode),
        help="validate: enforce what of the schema can be, and tell of violations of the rest",
    )


def run(arguments: argparse.Namespace) -> int:
    from radixserve.batch.progress import Tally
    from radixserve.config.resolve import resolve

    tally = Tally()
    try:
        config = resolve(from_args(arguments))
        asyncio.run(_run(arguments, config, _task(arguments, config), tally))
    except (RadixServeError, OSError, UnicodeDecodeError) as error:
        print(f"radixserve: {error}", file=sys.stderr)
        _hint(tally)
        return NOT_RUN
    except KeyboardInterrupt:
        _hint(tally)
        return INTERRUPTED
    return SOME_FAILED if tally.failed or tally.kept_failed else ANSWERED


def _hint(tally: Tally) -> None:
    if tally.done:
        done = f"{tally.done} lines are answered"
        print(f"radixserve: {done}; the same command goes on from there", file=sys.stderr)


async def _run(arguments: argparse.Namespace, config: Config, task: Task, tally: Tally) -> None:
    from radixserve.batch import answers
    from radixserve.batch.lines import read_lines
    from radixserve.batch.progress import Progress
    from radixserve.batch.run import Batch
    from radixserve.launch import launch

    if pathlib.Path(arguments.output).resolve() == pathlib.Path(arguments.input).resolve():
        raise ConfigError("the output is the input")
    with (
        _opened(arguments.input) as (source, size),
        answers.open_output(arguments.output, overwrite=arguments.overwrite) as output,
    ):
        kept = answers.keep_answers(output, read_lines(source, task.limit), task.limit)
        tally.kept, tally.kept_failed, tally.read = kept.count, kept.failed, kept.read
        first = next(kept.rest, None)
        if first is None:
            print(f"{tally.kept} lines, all answered before", file=sys.stderr)
            return
        launched = await launch(config)
        try:
            progress = Progress(sys.stderr, tally, size)
            lines = itertools.chain([first], kept.rest)
            await Batch(task, launched.gateway, tally).run(lines, output, progress)
        finally:
            await launched.close()
    print(progress.summary(), file=sys.stderr)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[BinaryIO, int | None]]:
    """The input, and how many bytes it has where that is known."""
    if path == "-":
        yield sys.stdin.buffer, None
        return
    file = pathlib.Path(path)
    with file.open("rb") as source:
        yield source, file.stat().st_size


def _task(arguments: argparse.Namespace, config: Config) -> Task:
    """Raises ConfigError and RequestError for what no line could be answered with."""
    from radixserve.batch.asks import Defaults
    from radixserve.batch.run import Task

    if arguments.window < 1:
        raise ConfigError(f"--window must be at least 1, not {arguments.window}")
    options = _given(arguments, "whitespace", "constraint_mode")
    if options and arguments.schema is None:
        raise ConfigError(f"--{min(options).replace('_', '-')} has an effect only with --schema")
    fields = _given(arguments, *(name for name, _, _ in SAMPLING))
    if arguments.stop:
        fields["stop"] = arguments.stop
    _check_sampling(fields, arguments.seed)
    return Task(
        defaults=Defaults(
            fields=fields,
            constraint=_constraint(arguments),
            options=options,
            template=_template(arguments.prompt_template),
            seed=arguments.seed,
        ),
        window=min(arguments.window, config.schedule.max_waiting),
        limit=config.http.max_body,
        default_max_tokens=config.http.default_max_tokens,
    )


def _given(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    values = {name: getattr(arguments, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _check_sampling(fields: dict[str, Any], seed: int | None) -> None:
    given = dict(fields, seed=seed, stop=tuple(fields.get("stop", ())))
    given["max_new_tokens"] = given.pop("max_tokens", 1)
    SamplingParams(**given)


def _template(given: str | None) -> str:
    from radixserve.batch.asks import PLACE, TEMPLATE

    if given is None:
        return TEMPLATE
    text = pathlib.Path(given[1:]).read_text("utf-8") if given.startswith("@") else given
    if not PLACE.search(text):
        raise ConfigError("--prompt-template names no field, such as {text}")
    return text


def _constraint(arguments: argparse.Namespace) -> Constraint | None:
    from radixserve.grammar import check

    if arguments.schema is not None:
        found = Constraint(
            kind="json_schema", value=pathlib.Path(arguments.schema).read_text("utf-8")
        )
    elif arguments.regex is not None:
        found = Constraint(kind="regex", value=arguments.regex)
    elif arguments.ebnf is not None:
        found = Constraint(kind="ebnf", value=pathlib.Path(arguments.ebnf).read_text("utf-8"))
    elif arguments.choice:
        found = Constraint(kind="choice", value=json.dumps(arguments.choice))
    else:
        return None
    if arguments.constraint_mode != "validate":
        check.check(found)
    return found
