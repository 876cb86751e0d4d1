"""Fixtures of the API tests."""

from __future__ import annotations

import pytest

from radixserve.text.renderer import Renderer
from tests.api.scripted import make_renderer


@pytest.fixture(scope="session")
def renderer(tmp_path_factory) -> Renderer:
    return make_renderer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def bos_renderer(tmp_path_factory) -> Renderer:
    return make_renderer(
        tmp_path_factory.mktemp("bos"),
        add_bos=True,
        config={"bos_token": "<|endoftext|>"},
    )
