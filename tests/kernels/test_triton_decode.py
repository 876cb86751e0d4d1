"""Split decode attention against the reference, over shapes that hurt."""

from __future__ import annotations

import pytest
import torch

from radixserve.kernels.triton.attend_decode import choose_splits
from tests.kernels.triton_scene import Scene

SINKS = torch.linspace(-2.0, 2.0, 4)


@pytest.mark.parametrize("page_size", [1, 3, 16, 64])
@pytest.mark.parametrize("splits", [1, 3])
def test_lengths_around_page_and_block_borders(page_size: int, splits: int) -> None:
    positions = [0, page_size - 1, page_size, 63, 64, 130]
    scene = Scene(positions, [1] * len(positions), page_size, kv_heads=1)
    scene.check(scene.decode(splits))


@pytest.mark.parametrize("group", [1, 2, 3, 5, 7, 8, 17])
def test_any_number_of_query_heads_to_a_kv_head(group: int) -> None:
    scene = Scene([40, 3], [1, 1], kv_heads=2 if group < 5 else 1, group=group, head_dim=16)
    scene.check(scene.decode(2))


@pytest.mark.parametrize("head_dim", [24, 64, 96, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_head_dims_and_types(head_dim: int, dtype: torch.dtype) -> None:
    scene = Scene([69], [1], kv_heads=1, group=4, head_dim=head_dim, dtype=dtype)
    scene.check(scene.decode())


@pytest.mark.parametrize("splits", [1, 2])
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
def test_windows_caps_and_sinks(options: dict, splits: int) -> None:
    scene = Scene([0, 32, 90], [1, 1, 1], options=options)
    scene.check(scene.decode(splits))


@pytest.mark.parametrize("as_bits", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_fp8_cache_with_scales(as_bits: bool, dtype: torch.dtype) -> None:
    scene = Scene([5, 70], [1, 1], dtype=dtype, is_fp8=True)
    if as_bits:  # for GPUs that have no fp8
        plain = scene.decode(2)
        scene.k, scene.v = scene.k.view(torch.uint8), scene.v.view(torch.uint8)
        assert torch.equal(scene.decode(2), plain)
    else:
        scene.check(scene.decode(2))


def test_257_rows() -> None:
    """Of which most are padding, as in a graph: the interpreter takes its time for each."""
    positions = [i % 5 if i % 8 == 0 else -1 for i in range(257)]
    scene = Scene(positions, [1] * 257, 4, kv_heads=1, group=1, head_dim=16)
    scene.check(scene.decode())


def test_more_splits_than_keys_and_rows_without_keys_are_harmless() -> None:
    scene = Scene([0, 2], [1, 1])
    scene.check(scene.decode(9))
    scene.positions[0] = -1  # a padding row of a captured graph
    for splits in (1, 3):
        assert torch.equal(scene.decode(splits)[0], torch.zeros(4, 64))


def test_scores_that_overflow_an_exponential_do_not() -> None:
    scene = Scene([40], [1])
    scene.q *= 1000.0
    got = scene.decode(2)
    assert torch.isfinite(got).all()
    scene.check(got)


def test_splits_fill_the_processors_and_no_more() -> None:
    assert choose_splits(1, 8, 8192, 132) == 32  # bounded by the keys of a split
    assert choose_splits(1, 8, 65536, 132) == 64
    assert choose_splits(64, 8, 2048, 132) == 2
    assert choose_splits(256, 8, 2048, 132) == 1
    assert choose_splits(1, 8, 100, 132) == 1


def test_caches_that_would_be_read_wrongly_are_refused() -> None:
    scene = Scene([4], [1])
    good = scene.caches()
    for q, caches, message in [
        (scene.q.half(), good, "float16 queries"),
        (scene.q, (good[0].view(torch.uint8), good[1].view(torch.uint8)), "do not fit"),
        (scene.q.transpose(1, 2), good, "side by side"),
        (scene.q, (good[0].transpose(1, 2), good[1].transpose(1, 2)), "contiguous"),
    ]:
        scene.q, (scene.k, scene.v) = q, caches
        with pytest.raises(ValueError, match=message):
            scene.decode()
        scene = Scene([4], [1])
