"""Core counts and CPU features, from texts as Linux writes them."""

from __future__ import annotations

import pytest

from radixserve.config.machine import cpu_features, has_gpu, this_machine, usable_cores


@pytest.mark.parametrize(
    ("physical", "allowed", "quota", "cores"),
    [
        (8, 16, "max 100000", 8),
        (8, 2, "max 100000", 2),
        (8, 16, "200000 100000", 2),
        (8, 16, "150000 100000", 2),
        (8, 16, "50000 100000", 1),
        (8, 16, "", 8),
        (8, 16, "100000 0", 8),
        (None, 16, "max", 16),
        (8, None, "max", 8),
        (None, None, "max", 1),
        (0, 0, "max", 1),
    ],
)
def test_usable_cores_is_the_least_of_the_limits(physical, allowed, quota, cores):
    assert usable_cores(physical, allowed, quota) == cores


X86 = """\
processor\t: 0
model name\t: Some CPU
flags\t\t: fpu avx2 avx512_bf16
bugs\t\t: spectre

processor\t: 1
flags\t\t: fpu
"""


def test_features_are_whole_words_of_the_first_processor():
    assert cpu_features(X86) == {"fpu", "avx2", "avx512_bf16"}
    assert cpu_features("Features\t: fp asimd bf16\n") == {"fp", "asimd", "bf16"}
    assert cpu_features("model name: flags\n") == frozenset()
    assert cpu_features("") == frozenset()


def test_a_gpu_counts_where_torch_was_built_for_it(tmp_path):
    libraries = tmp_path / "lib"
    libraries.mkdir()
    for name in ("nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert not has_gpu(tmp_path, libraries)
    (libraries / "libtorch_cuda.so").touch()
    assert not has_gpu(tmp_path, libraries)
    (tmp_path / "nvidia3").touch()
    assert has_gpu(tmp_path, libraries)
    assert not has_gpu(tmp_path, None)
    (libraries / "libtorch_cuda.so").unlink()
    assert not has_gpu(tmp_path, libraries)


def test_this_machine_has_a_core():
    assert this_machine().cores >= 1
