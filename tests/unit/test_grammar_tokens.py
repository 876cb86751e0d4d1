"""Text that a grammar has decided, as tokens: forced text, endings, beside the engine's mask."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch
import xgrammar
from hypothesis import given
from hypothesis import strategies as st

from radixserve.grammar import ebnf, rules
from radixserve.grammar.tokens import Tokens
from radixserve.grammar.track import State, Track
from radixserve.text.tokenizer import Tokenizer
from radixserve.weights.source import ModelSource
from tests.grammar_bytes import ByteGrammar, schema_grammar
from tests.grammar_tracks import made_schemas, text_grammars
from tests.tiny_tokenizer import make_tokenizer

BYTES = [bytes([code]) for code in range(256)]
WORDS = [
    b"ab",
    b"abc",
    b"bc",
    b'"',
    b'": ',
    b": ",
    b'{"',
    b'{"a',
    b'": "',
    b"true",
    b"tr",
    b"\xc3\xa9",
]


def tokens_of(*words: bytes, without: bytes = b"") -> Tokens:
    """All single bytes but some, then these words."""
    token_bytes = [*BYTES, *words]
    ordinary = [
        i for i, text in enumerate(token_bytes) if text not in [bytes([c]) for c in without]
    ]
    return Tokens(token_bytes, ordinary)


def track_of(text: str) -> Track:
    found = Track.of(rules.finish(ebnf.read(text)))
    assert found is not None
    return found


def spelled(ids: list[int] | None, *words: bytes) -> list[bytes]:
    assert ids is not None
    return [[*BYTES, *words][token] for token in ids]


def load(folder, kind: str) -> Tokenizer:
    return Tokenizer.load(ModelSource("folder", make_tokenizer(folder, kind=kind), "tiny"))


@pytest.fixture(scope="module", params=["bytes", "sentencepiece"])
def tiny(request, tmp_path_factory) -> Tokenizer:
    return load(tmp_path_factory.mktemp(request.param), request.param)


def tokens_of_tokenizer(tokenizer: Tokenizer) -> Tokens:
    ordinary = [i for i, text in enumerate(tokenizer.token_bytes) if text]
    return Tokens(tokenizer.token_bytes, ordinary, tokenizer.to_engine())


# encode


@given(st.text(max_size=30))
def test_encoding_is_the_tokenizers_own(tiny, text):
    found = tokens_of_tokenizer(tiny).encode(text.encode())
    assert found == tiny.encode(text, opens=False, special=False).tolist()


@given(st.binary(max_size=20))
def test_any_bytes_are_spelled_exactly(tiny, text):
    found = tokens_of_tokenizer(tiny).encode(text)
    assert found is not None
    assert b"".join(tiny.token_bytes[token] for token in found) == text


def test_control_tokens_are_plain_text(tiny):
    found = tokens_of_tokenizer(tiny).encode(b"a<|im_end|> b")
    assert found is not None
    assert not set(found) & tiny.special_ids
    assert b"".join(tiny.token_bytes[token] for token in found) == b"a<|im_end|> b"


def test_cut_characters_keep_the_tokens_between_them(tiny):
    tokens = tokens_of_tokenizer(tiny)
    data = "é the other letters 🚀".encode()
    whole = tiny.encode(" the other letters ", opens=False, special=False).tolist()
    for start, end in ((1, 1), (1, 2), (1, 3)):
        found = tokens.encode(data[start : len(data) - end])
        assert found is not None
        assert found[1 : 1 + len(whole)] == whole


def test_longest_match_where_there_is_no_tokenizer():
    tokens = tokens_of(*WORDS)
    assert spelled(tokens.encode(b'{"abc": "'), *WORDS) == [b'{"a', b"bc", b'": "']
    assert spelled(tokens.encode(b"abcbc"), *WORDS) == [b"abc", b"bc"]
    assert tokens.encode(b"") == []


def test_fewest_tokens_where_the_longest_lead_nowhere():
    tokens = tokens_of(b"aab", b"aa", b"bcd", without=b"abcd")
    assert spelled(tokens.encode(b"aabcd"), b"aab", b"aa", b"bcd") == [b"aa", b"bcd"]
    assert tokens.encode(b"aabc") is None
    assert tokens.encode(b"x") is not None


@given(st.lists(st.text("ab", min_size=1, max_size=4), max_size=8), st.text("ab", max_size=12))
def test_spelling_exists_where_any_does(words, text):
    tokens = Tokens([word.encode() for word in words], range(len(words)))
    ways = [True] + [False] * len(text)
    for i in range(1, len(ways)):
        ways[i] = any(ways[i - len(w)] for w in words if text[:i].endswith(w))
    found = tokens.encode(text.encode())
    assert (found is not None) == ways[-1]
    if found is not None:
        assert "".join(words[token] for token in found) == text


# forced


def test_the_last_token_is_left_out_where_a_longer_one_may_come():
    quoted = track_of('root ::= "{\\"a\\": \\"" [a-z]* "\\"}"')
    words = [b'{"', b'a": "', b'": "']
    tokens = tokens_of(*words, b'a": "xy')
    ids, after = tokens.forced(quoted.start)
    assert spelled(ids, *words) == [b'{"']
    assert after is quoted.start.walk(b'{"')
    ids, after = tokens_of(*words, b'a": "1').forced(quoted.start)  # that one is not legal
    assert spelled(ids, *words) == [b'{"', b'a": "']
    assert after is quoted.start.walk(b'{"a": "')


def test_a_longer_token_over_several_leaves_all_of_them_out():
    found = track_of('root ::= "xyz" [0-9]')
    words = [b"xy", b"xyz1", b"z7"]
    assert spelled(tokens_of(b"xy").forced(found.start)[0], *words) == [b"xy", b"z"]
    assert spelled(tokens_of(b"xy", b"z7").forced(found.start)[0], *words[:1]) == [b"xy"]
    assert tokens_of(*words).forced(found.start) == ([], found.start)
    assert spelled(tokens_of(b"xy", b"xyza").forced(found.start)[0], *words) == [b"xy", b"z"]


def test_nothing_is_left_out_before_the_end():
    found = track_of('root ::= "yes" | "no"')
    tokens = tokens_of(b"es", b"ess")
    yes = found.start.step(ord("y"))
    assert yes is not None
    ids, after = tokens.forced(yes)
    assert spelled(ids, b"es") == [b"es"]
    assert after.must_end
    assert tokens.forced(after) == ([], after)
    assert tokens.forced(found.start) == ([], found.start)


def test_half_a_character_is_not_forced():
    found = track_of('root ::= "x" ("é" | "è")')
    tokens = tokens_of()
    ids, after = tokens.forced(found.start)
    assert ids == [ord("x")]
    assert tokens.forced(after) == ([], after)  # both begin with the same byte
    inside = after.step(0xC3)
    assert inside is not None
    assert tokens.forced(inside) == ([], inside)


def test_what_no_token_spells_is_not_forced_and_has_no_ending():
    found = track_of('root ::= "a" [b-d] "x"')
    tokens = tokens_of(without=b"ax")
    assert tokens.forced(found.start) == ([], found.start)
    assert tokens.ending(found.start) is None
    assert tokens_of().ending(found.start) == [ord("a"), ord("c"), ord("x")]


def test_lost_states_have_neither():
    found = track_of('root ::= ((("a" | "aa"){1,100}){1,100}){1,100} "b"')
    state = found.start.walk(b"a" * 500)
    assert state is not None
    assert state.lost
    assert tokens_of().forced(state) == ([], state)
    assert tokens_of().ending(state) is None


def test_endings_take_the_fewer_tokens(tiny):
    found = track_of('root ::= "the other letters" [0-9]?')
    state = found.start
    ending = tokens_of_tokenizer(tiny).ending(state)
    assert ending == tiny.encode("the other letters", opens=False, special=False).tolist()
    words = [b"ab", b"abc", b"bc", b"cd"]
    greedy = tokens_of(*words).ending(track_of('root ::= "abcd"').start)
    assert spelled(greedy, *words) in ([b"abc", b"d"], [b"ab", b"cd"])
    assert tokens_of().ending(track_of('root ::= "a"?').start) == []


# beside the grammar engine's mask


class Masked:
    """A constraint over a tokenizer's own vocabulary, and what the grammar engine allows."""

    def __init__(self, grammar: ByteGrammar, tokenizer: Tokenizer) -> None:
        self.size = tokenizer.vocab_size
        info = xgrammar.TokenizerInfo(
            tokenizer.token_bytes,
            vocab_type=xgrammar.VocabType.RAW,
            vocab_size=self.size,
            stop_token_ids=[0],
        )
        compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.matcher = xgrammar.GrammarMatcher(compiler.compile_grammar(grammar.text))

    def legal(self) -> list[int]:
        row = torch.zeros(1, (self.size + 31) // 32, dtype=torch.int32)
        self.matcher.fill_next_token_bitmask(row)
        bits = np.unpackbits(row.numpy().view(np.uint8), bitorder="little")[: self.size]
        return [int(token) for token in np.flatnonzero(bits) if token > 2]


def run(grammar: ByteGrammar, tokenizer: Tokenizer, tokens: Tokens, rng: random.Random) -> int:
    """One output, forced tokens appended and the rest drawn; how many were forced."""
    found = Track.of(grammar.grammar)
    assert found is not None
    masked = Masked(grammar, tokenizer)
    state: State | None = found.start
    count = 0
    for _ in range(60):
        assert state is not None
        must = state.forced
        legal = masked.legal()
        for token in legal if must else ():
            text = tokenizer.token_bytes[token]
            assert text.startswith(must) or must.startswith(text)
        if not legal:
            assert state.must_end
            return count
        ids, onward = tokens.forced(state)
        assert must.startswith(b"".join(tokenizer.token_bytes[token] for token in ids))
        for token in ids:
            assert masked.matcher.accept_token(token)
        count += len(ids)
        state = onward
        legal = masked.legal()
        if not legal:
            continue
        ending = tokens.ending(state)
        assert ending is not None
        assert bool(ending) != state.may_end
        if ending:
            assert ending[0] in legal
        token = rng.choice(legal)
        assert masked.matcher.accept_token(token)
        state = state.walk(tokenizer.token_bytes[token])
    return count


def test_forced_tokens_agree_with_the_mask(tiny):
    rng = random.Random(31)
    tokens = tokens_of_tokenizer(tiny)
    grammars = [grammar for _, grammar in made_schemas(rng, 60)] + text_grammars()
    forced = sum(run(grammar, tiny, tokens, rng) for grammar in grammars)
    assert forced > 60


def test_forced_tokens_are_those_of_the_whole_text(tiny):
    """Where an output has been forced from its start, encoding all of it gives the same tokens."""
    tokens = tokens_of_tokenizer(tiny)
    for name in ("capital", "the other letters", "x", 'q"é'):
        schema = {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}
        found = Track.of(schema_grammar({**schema, "additionalProperties": False}).grammar)
        assert found is not None
        ids, _ = tokens.forced(found.start)
        for value in ("", "the cat", "12", " ", '"', "é"):
            whole = json.dumps({name: value}, ensure_ascii=False)
            assert tiny.encode(whole, opens=False, special=False).tolist()[: len(ids)] == ids


@pytest.mark.model
def test_smollm2(smollm2):
    tokenizer = Tokenizer.load(smollm2)
    tokens = tokens_of_tokenizer(tokenizer)
    properties = {"name": {"type": "string"}, "favourite colour": {"enum": ["red", "deep blue"]}}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    found = Track.of(schema_grammar({**schema, "additionalProperties": False}).grammar)
    assert found is not None
    texts = ["Zoë said: “hi” 🚀", "a<|im_end|>b", " x", "1234 5", "\n\n  y", "été\t--"]
    for text in texts:
        own = tokenizer.encode(text, opens=False, special=False).tolist()
        assert tokens.encode(text.encode()) == own
    ids, state = tokens.forced(found.start)
    assert [tokenizer.token_bytes[token] for token in ids] == [b'{"', b"name", b'":']
    onward = state.walk(b' "Ann"')
    assert onward is not None
    ids, state = tokens.forced(onward)
    assert tokenizer.decode(ids) == ', "favourite colour": "'  # no token joins the quote and a word
    assert tokens.ending(state) == tokenizer.encode('red"}', opens=False, special=False).tolist()
    assert tokens.encode(b"\x16") is None  # no token of this model spells it
