"""Grammars run byte by byte, without a model: what is accepted, and texts drawn through the
mask."""

from __future__ import annotations

import functools
import json
import random

import numpy as np
import pytest
import torch
import xgrammar

from radixserve.errors import InvalidRequest
from radixserve.grammar import check, rules
from radixserve.wire.params import Constraint

STOP = 256
CLOSED = {"additionalProperties": False}
_LIKELY = b'"]},:0123456789 abctfn'


@functools.cache
def compiler() -> xgrammar.GrammarCompiler:
    vocabulary = [bytes([code]) for code in range(256)] + [b"</s>"]
    info = xgrammar.TokenizerInfo(
        vocabulary,
        vocab_type=xgrammar.VocabType.RAW,
        vocab_size=len(vocabulary),
        stop_token_ids=[STOP],
    )
    return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)


class ByteGrammar:
    """One constraint, compiled for a vocabulary of single bytes."""

    def __init__(self, constraint: Constraint) -> None:
        constraint = check.check(constraint)
        self.grammar = check.grammar(constraint)
        self.text = rules.ebnf(self.grammar)
        self._compiled = compiler().compile_grammar(self.text)

    def accepts(self, text: str) -> bool:
        """The whole of `text` is an output, to its end."""
        matcher = xgrammar.GrammarMatcher(self._compiled)
        return (not text or matcher.accept_string(text)) and matcher.is_completed()

    def draw(self, rng: random.Random, most: int = 300) -> str | None:
        """A text drawn byte by byte from what the mask allows; None when `most` bytes do not end
        it."""
        matcher = xgrammar.GrammarMatcher(self._compiled)
        row = torch.zeros(1, (STOP + 32) // 32, dtype=torch.int32)
        out = bytearray()
        for _ in range(most):
            matcher.fill_next_token_bitmask(row)
            bits = np.unpackbits(row.numpy().view(np.uint8), bitorder="little")[: STOP + 1]
            legal = np.flatnonzero(bits).tolist()
            assert legal, f"nothing may follow {bytes(out)!r}"
            assert (STOP in legal) == matcher.is_completed()
            if STOP in legal and (len(legal) == 1 or rng.random() < 0.4):
                return out.decode()
            legal = [code for code in legal if code != STOP]
            likely = [code for code in legal if code in _LIKELY]
            byte = rng.choice(likely if likely and rng.random() < 0.8 else legal)
            assert matcher.accept_token(byte)
            out.append(byte)
        return None


def schema_grammar(schema: object, **options: str) -> ByteGrammar:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return ByteGrammar(Constraint(kind="json_schema", value=text, **options))


def grammar_of(kind: str, value: str) -> ByteGrammar:
    return ByteGrammar(Constraint(kind=kind, value=value))


def accept(schema: object, good: list[str], bad: list[str], **options: str) -> None:
    grammar = schema_grammar(schema, **options)
    for text in good:
        assert grammar.accepts(text), f"{text} refused by\n{grammar.text}"
    for text in bad:
        assert not grammar.accepts(text), f"{text} accepted by\n{grammar.text}"


def refusal(kind: str, value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    with pytest.raises(InvalidRequest) as caught:
        check.check(Constraint(kind=kind, value=text))
    assert caught.value.status == 400
    assert caught.value.code == "unsupported_schema"
    assert caught.value.param == kind
    return caught.value.message


def field(schema: object) -> dict[str, object]:
    return {"type": "object", "properties": {"code": schema}, "required": ["code"], **CLOSED}
