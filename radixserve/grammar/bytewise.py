"""Runs a grammar over bytes with the grammar engine.

Owns: a vocabulary of single bytes. Must not know: constraints, tokenizers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import xgrammar

from radixserve.grammar import rules

_END = 256


def reader(grammar: rules.Grammar) -> Callable[[bytes], bool]:
    """Says of a text whether it is, to its end, an output of `grammar`."""
    compiled = _compiler().compile_grammar(rules.ebnf(grammar))

    def accepts(text: bytes) -> bool:
        matcher = xgrammar.GrammarMatcher(compiled)
        return (not text or matcher.accept_string(text)) and bool(matcher.is_completed())

    return accepts


@cache
def _compiler() -> xgrammar.GrammarCompiler:
    info = xgrammar.TokenizerInfo(
        [*(bytes([code]) for code in range(_END)), b"</s>"],
        vocab_type=xgrammar.VocabType.RAW,
        vocab_size=_END + 1,
        stop_token_ids=[_END],
    )
    return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
