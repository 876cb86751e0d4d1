"""Results as a table to read and as names with values to keep.

Owns: columns, units, names. Must not know: how the numbers came about.
"""

from __future__ import annotations

from collections.abc import Sequence

from .rounds import Result
from .runner import Run
from .workloads import WORKLOADS

HEAD = (
    "workload",
    "side",
    "makespan s",
    "spread",
    "tokens/s",
    "TTFT ms",
    "p99 ms",
    "ITL ms",
    "cached of sharable",
    "valid",
    "client CPU",
    "speed of the first",
)


def table(results: Sequence[Result]) -> str:
    """A Markdown table: medians over the rounds; a line for each workload and side.

    The last column says how many times as fast the first side is as this one.
    """
    rows = [HEAD, tuple("---" for _ in HEAD)]
    rows += [_row(result, side) for result in results for side in result.runs]
    return "\n".join(_line(row) for row in _aligned(rows))


def flat(results: Sequence[Result]) -> dict[str, float | str]:
    """ "W1.ours.makespan_s": 3.21 and the like; "W1.speed.ours_to_vllm": 1.8 of each pair with the
    first side, and "W1.verdict.ours_to_vllm": "ok" or "inconclusive"."""
    values: dict[str, float | str] = {}
    for result in results:
        at = result.workload
        first, *others = result.runs
        values[f"{at}.prompt_tokens"] = result.prompt_tokens
        values[f"{at}.sharable_tokens"] = result.shared
        for side in result.runs:
            for name, number in _numbers(result, side).items():
                if number is not None:
                    values[f"{at}.{side}.{name}"] = round(number, 6)
        for other in others:
            values[f"{at}.speed.{first}_to_{other}"] = round(result.speed(first, other), 4)
            values[f"{at}.verdict.{first}_to_{other}"] = _verdict(result, first, other)
    return values


def _numbers(result: Result, side: str) -> dict[str, float | None]:
    return {
        "makespan_s": result.middle(side, lambda one: one.makespan),
        "drift": result.drift(side),
        "tokens_per_s": result.middle(side, lambda one: one.tokens_per_second),
        "ttft_s": result.middle(side, lambda one: one.ttft),
        "ttft_p99_s": result.middle(side, lambda one: one.ttft_p99),
        "itl_s": result.middle(side, lambda one: one.itl),
        "cached_tokens": result.middle(side, lambda one: one.cached_tokens),
        "client_cpu_s": result.middle(side, lambda one: one.client_cpu),
        "valid": result.middle(side, lambda one: one.valid),
    }


def _row(result: Result, side: str) -> tuple[str, ...]:
    numbers = _numbers(result, side)
    first = next(iter(result.runs))
    share = result.middle(side, _client_share)
    return (
        f"{result.workload} {WORKLOADS[result.workload].title}" if side == first else "",
        side,
        _shown(numbers["makespan_s"], 1, 3),
        f"{result.drift(side):.0%}",
        _shown(numbers["tokens_per_s"], 1, 1),
        _shown(numbers["ttft_s"], 1000, 0),
        _shown(numbers["ttft_p99_s"], 1000, 0),
        _shown(numbers["itl_s"], 1000, 1),
        _cached(numbers["cached_tokens"], result.shared),
        "-" if numbers["valid"] is None else f"{numbers['valid']:.0%}",
        "-" if share is None else f"{share:.1%}",
        "" if side == first else _speed(result, first, side),
    )


def _client_share(one: Run) -> float:
    return one.client_cpu / one.makespan


def _speed(result: Result, first: str, other: str) -> str:
    verdict = _verdict(result, first, other)
    return f"{result.speed(first, other):.2f}x{'' if verdict == 'ok' else f' ({verdict})'}"


def _verdict(result: Result, first: str, other: str) -> str:
    return "ok" if result.is_conclusive(first, other) else "inconclusive"


def _shown(number: float | None, factor: float, digits: int) -> str:
    return "-" if number is None else f"{number * factor:.{digits}f}"


def _cached(tokens: float | None, shared: int) -> str:
    return f"{'?' if tokens is None else round(tokens)} of {shared}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        [cell.ljust(width, "-" if cell == "---" else " ") for cell, width in zip(row, widths)]
        for row in rows
    ]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
