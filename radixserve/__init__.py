"""radixserve: a prefix-sharing structured-generation runtime.

`import radixserve as rs` brings the language (rs.function, rs.gen, ..) at once, and the engine
(rs.Engine) and the checking of constraints (rs.Grammar) when they are first named; none of them
imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixserve.errors import RadixServeError, RequestError
from radixserve.lang import *  # noqa: F403
from radixserve.lang import __all__ as _lang_names

if TYPE_CHECKING:
    from radixserve.engine import Engine
    from radixserve.grammar.offline import Grammar

__version__ = "0.1.0"
__all__ = ["Engine", "Grammar", "RadixServeError", "RequestError", *_lang_names]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from radixserve.engine import Engine

        return Engine
    if name == "Grammar":
        from radixserve.grammar.offline import Grammar

        return Grammar
    raise AttributeError(f"module 'radixserve' has no attribute {name!r}")
