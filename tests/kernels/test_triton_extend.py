"""Attention of items of work against the reference: prefill, mixed steps, shared pages."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixserve.plan import SharedGroup
from tests.kernels.triton_scene import Scene

SINKS = torch.linspace(-2.0, 2.0, 4)
few = settings(max_examples=5, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("page_size", [1, 5, 16, 64])
def test_a_mixed_step_around_page_borders(page_size: int) -> None:
    positions = [0, page_size - 1, page_size, 70, 0]
    lengths = [1, page_size + 1, 1, 5, 2 * page_size]
    scene = Scene(positions, lengths, page_size)
    scene.check(scene.extend())


@pytest.mark.parametrize("group", [1, 2, 3, 5, 7, 8])
def test_any_number_of_query_heads_to_a_kv_head(group: int) -> None:
    heads = 3 if group < 5 else 1
    scene = Scene([0, 9], [23, 2], kv_heads=heads, group=group, head_dim=16)
    scene.check(scene.extend())


@pytest.mark.parametrize("head_dim", [24, 96, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_head_dims_and_types(head_dim: int, dtype: torch.dtype) -> None:
    scene = Scene([60], [20], kv_heads=1, group=4, head_dim=head_dim, dtype=dtype)
    scene.check(scene.extend())


@pytest.mark.parametrize(
    "options",
    [
        {"window": 1},
        {"window": 33},
        {"softcap": 3.0},
        {"sinks": SINKS},
        {"window": 20, "softcap": 2.0, "sinks": SINKS},
    ],
    ids=str,
)
def test_windows_caps_and_sinks(options: dict) -> None:
    scene = Scene([0, 50, 600], [40, 30, 1], options=options)
    scene.check(scene.extend())
    scene.check(scene.extend(wanted=100))  # the longest row in parts, where its window is long


def test_an_fp8_cache_with_scales() -> None:
    scene = Scene([5, 70], [6, 1], dtype=torch.bfloat16, is_fp8=True)
    scene.check(scene.extend())


def test_257_rows_on_fewer_programs() -> None:
    lengths = [1 + i % 2 for i in range(257)]
    positions = [i % 5 for i in range(257)]
    scene = Scene(positions, lengths, 4, kv_heads=1, group=1, head_dim=16)
    scene.check(scene.extend(processors=3))


@pytest.mark.parametrize("wanted", [1, 8])
def test_long_ranges_in_parts(wanted: int) -> None:
    scene = Scene([1300, 0], [3, 40], kv_heads=1, head_dim=16)
    assert (scene.cut((), queries=8, wanted=wanted).part_count > 0) == (wanted > 1)
    scene.check(scene.extend(wanted))


def trunk_and_branches() -> tuple[Scene, tuple[SharedGroup, ...]]:
    trunk, left = list(range(8)), list(range(8, 14))
    tables = [trunk + left + [20 + i] for i in range(3)] + [[*trunk, 30], [40, 41]]
    positions = [14 * 16 + 3, 14 * 16, 14 * 16 + 14, 8 * 16 + 1, 20]
    scene = Scene(positions, [1, 3, 1, 1, 1], tables=tables)
    return scene, (SharedGroup((0, 1, 2, 3), 0, 8), SharedGroup((0, 1, 2), 8, 14))


@pytest.mark.parametrize("wanted", [1, 40])
def test_groups_within_groups(wanted: int) -> None:
    scene, groups = trunk_and_branches()
    assert scene.groups() == groups
    scene.check(scene.shared(groups, wanted))


@pytest.mark.parametrize("options", [{"window": 100}, {"window": 3}, {"sinks": SINKS}], ids=str)
def test_groups_with_windows_and_sinks(options: dict) -> None:
    scene, groups = trunk_and_branches()
    scene = Scene(scene.positions, scene.lengths, tables=scene.tables, options=options)
    scene.check(scene.shared(groups))


def test_a_group_that_reaches_into_a_rows_own_tokens_is_cut() -> None:
    table = list(range(6))
    scene = Scene([80, 40], [1, 1], tables=[table, table[:3]])
    scene.check(scene.shared((SharedGroup((0, 1), 0, 3),)))


def test_a_large_group_takes_several_tiles() -> None:
    trunk = list(range(8))
    tables = [[*trunk, 10 + i] for i in range(70)]
    positions = [128 + i % 16 for i in range(70)]
    scene = Scene(positions, [1] * 70, tables=tables, kv_heads=1, group=3, head_dim=16)
    scene.check(scene.shared(scene.groups()))


@st.composite
def trees(draw: st.DrawFn) -> Scene:
    """Rows on paths of a tree of pages: prefixes shared by all, by some, by none."""
    page_size = draw(st.sampled_from([8, 16, 40]))
    numbers = iter(range(10**6))
    paths: list[list[int]] = [[]]
    for _ in range(draw(st.integers(1, 4))):
        parent = draw(st.sampled_from(paths))
        grown = draw(st.integers(1, 200 // page_size))
        paths.append(parent + [next(numbers) for _ in range(grown)])
    rows = [draw(st.sampled_from(paths)) for _ in range(draw(st.integers(2, 6)))]
    lengths = [draw(st.sampled_from([1, 1, 1, 2, 5, 17])) for _ in rows]
    extra = [draw(st.integers(0, 2 * page_size)) for _ in rows]
    positions = [len(path) * page_size + more for path, more in zip(rows, extra)]
    tables = [
        path + [next(numbers) for _ in range(-(-(position + n) // page_size) - len(path))]
        for path, position, n in zip(rows, positions, lengths)
    ]
    heads, group = draw(st.sampled_from([(1, 1), (2, 3), (1, 8)]))
    return Scene(positions, lengths, page_size, heads, group, head_dim=16, tables=tables)


@few
@given(scene=trees(), wanted=st.sampled_from([1, 30]))
def test_trees_of_pages(scene: Scene, wanted: int) -> None:
    scene.check(scene.extend(wanted))
    scene.check(scene.shared(scene.groups(), wanted))
