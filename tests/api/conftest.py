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


@pytest.fixture(scope="session")
def no_bos_renderer(tmp_path_factory) -> Renderer:
    """`renderer` has a BOS token and does not put it in front of prompts; this one has none."""
    return make_renderer(tmp_path_factory.mktemp("no_bos"), config={"bos_token": None})
