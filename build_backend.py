"""What pip calls to build the package: setuptools, and mypyc where compiling the tree is asked for.

Owns: which tools a build needs beside those in pyproject.toml. Must not know: what is built with
them (setup.py).
"""

from __future__ import annotations

import os
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    needed: list[str] = build_meta.get_requires_for_build_wheel(config_settings)
    return [*needed, "mypy>=2"] if os.environ.get("RADIXSERVE_COMPILE") == "1" else needed
