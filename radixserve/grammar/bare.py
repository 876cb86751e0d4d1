"""xgrammar without torch and transformers, for a process that compiles and does nothing else.

Owns: how xgrammar is imported there. Must not know: grammars. Importing it as it stands takes some
two seconds and 300 MiB, nearly all of them for types that only masks on tensors and tokenizers of
transformers need; the compiler itself is native.

Only for a process of our own: until load() returns, `import torch` finds a module of empty names.
Where a version of xgrammar wants more of it than that, load() fails, and who started the process
starts another without it.
"""

from __future__ import annotations

import sys
import types
from typing import Any


class _Anything:
    """Whatever is asked of torch while a module is being imported."""

    def __init__(self, *_args: Any, **_named: Any) -> None: ...


class _Empty(types.ModuleType):
    """A module in which every name is a class of its own."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = type(name, (_Anything,), {})
        setattr(self, name, found)
        return found


def load() -> None:
    """Import xgrammar, and compile with it once. Raises whatever that raises."""
    sys.modules["torch"] = None  # type: ignore[assignment]  # not there, as its bindings ask
    import tvm_ffi  # noqa: F401

    for name in ("torch", "transformers"):
        sys.modules[name] = _Empty(name)
    try:
        import xgrammar
    finally:
        for name in ("torch", "transformers"):
            del sys.modules[name]
    info = xgrammar.TokenizerInfo([b"a", b""], vocab_size=2, stop_token_ids=[1])
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    compiler.compile_grammar('root ::= "a"').serialize_json()
