"""Integer arithmetic that appears in more than one place."""

from __future__ import annotations


def ceil_div(n: int, d: int) -> int:
    """ceil_div(7, 4) == 2"""
    return -(-n // d)


def round_down(n: int, step: int) -> int:
    """round_down(7, 4) == 4"""
    return n - n % step
