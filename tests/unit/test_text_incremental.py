"""Tokens to text while they arrive: whole characters, and never a byte of a stop string."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from radixserve.text.incremental import Detokenizer, output_bytes

BYTES = [bytes([i]) for i in range(256)]
LLAMA = "🦙é在线👩‍👩‍👧‍👦"


def pieces_of(tokens: list[bytes], sizes: list[int], stops: tuple[bytes, ...] = ()) -> list[str]:
    """What comes out when `tokens` are pushed in groups, and the engine stops at `stops`."""
    detokenizer = Detokenizer(tokens, {}, stops=stops)
    end, cut = stopped(tokens, stops)
    pieces = []
    ids = list(range(end))
    for size in itertools.cycle(sizes):
        if not ids:
            break
        group, ids = ids[:size], ids[size:]
        pieces.append(detokenizer.push(group))
    return [*pieces, detokenizer.finish(cut)]


def stopped(tokens: list[bytes], stops: tuple[bytes, ...]) -> tuple[int, int | None]:
    """(tokens until the first completed stop string, where it begins), searched the plain way."""
    text = b""
    for n, token in enumerate(tokens, start=1):
        text += token
        starts = [text.find(stop) for stop in stops]
        found = [start for start in starts if start >= 0]
        if found:
            return n, min(found)
    return len(tokens), None


def expected(tokens: list[bytes], stops: tuple[bytes, ...]) -> str:
    end, cut = stopped(tokens, stops)
    return b"".join(tokens[:end])[:cut].decode("utf-8", "replace")


def joined_so_far(pieces: list[str]) -> list[str]:
    return ["".join(pieces[: n + 1]) for n in range(len(pieces))]


TOKENS = st.lists(
    st.sampled_from([b"", b"a", b"b", b"aa", b"ab", b"ba", b"\xc3", b"\xa9", b"c", b"\xff"])
    | st.binary(max_size=4),
    max_size=24,
)
STOPS = st.lists(
    st.text("abc\u00e9", min_size=1, max_size=4) | st.text(min_size=1, max_size=2), max_size=4
).map(lambda texts: tuple(text.encode() for text in texts))
SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=5)


@given(TOKENS, STOPS, SIZES)
@example([b"aaab"], (b"aab",), [1])
@example([b"abcd"], (b"abcd", b"bc"), [1])
@example([b"a", b"b", b"c"], (b"abd", b"bc"), [3])
def test_text_is_cut_at_the_first_stop_and_nothing_behind_it_gets_out(tokens, stops, sizes):
    pieces = pieces_of(tokens, sizes, stops)
    want = expected(tokens, stops)
    assert "".join(pieces) == want
    assert all(want.startswith(shown) for shown in joined_so_far(pieces))


@given(st.binary(max_size=40), SIZES)
def test_pieces_join_to_the_whole_for_any_bytes(data, sizes):
    tokens = [bytes([byte]) for byte in data]
    assert "".join(pieces_of(tokens, sizes)) == data.decode("utf-8", "replace")


@given(TOKENS, STOPS)
def test_text_is_held_back_only_while_it_may_become_a_stop(tokens, stops):
    """Brute force: the longest tail that begins a stop string, and a cut character, are held."""
    detokenizer = Detokenizer(tokens, {}, stops=stops)
    end, _ = stopped(tokens, stops)
    shown, text = "", b""
    for token in range(end - 1):
        shown += detokenizer.push([token])
        text += tokens[token]
        tails = [n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])]
        free = text[: len(text) - max(tails, default=0)]
        assert shown == free.decode("utf-8", "ignore") or "\ufffd" in free.decode(
            "utf-8", "replace"
        )


def test_every_split_of_characters_over_tokens():
    data = LLAMA.encode()
    for width in range(1, len(data) + 1):
        tokens = [data[i : i + width] for i in range(0, len(data), width)]
        pieces = pieces_of(tokens, [1])
        assert "".join(pieces) == LLAMA
        assert not any("\ufffd" in piece for piece in pieces)


def test_output_cut_inside_a_character_ends_in_one_replacement_only_at_the_end():
    detokenizer = Detokenizer(BYTES, {})
    pieces = [detokenizer.push([byte]) for byte in "é🦙".encode()[:4]]
    assert pieces == ["", "é", "", ""]
    assert detokenizer.finish(None) == "\ufffd"


@pytest.mark.parametrize("k", range(1, 8))
def test_stop_across_any_border_between_tokens(k):
    text = "abcdefgh"
    stop = text[2:6].encode()
    assert "".join(pieces_of([text[:k].encode(), text[k:].encode()], [1], (stop,))) == "ab"


@pytest.mark.parametrize(
    ("text", "stops", "shown"),
    [
        ("aaab", ["aab"], "a"),
        ("xaabaac", ["aabaac", "aabaab"], "x"),
        ("one two", ["two", "two more"], "one "),
        ("one two more", ["two more", "two"], "one "),
        ("ababac", ["abac"], "ab"),
        ("日本語。終", ["。"], "日本語"),
    ],
)
def test_overlapping_stops_byte_by_byte(text, stops, shown):
    tokens = [bytes([byte]) for byte in text.encode()]
    pieces = pieces_of(tokens, [1], tuple(stop.encode() for stop in stops))
    assert "".join(pieces) == shown


def test_unfinished_stop_is_text_after_all():
    detokenizer = Detokenizer(BYTES, {}, stops=(b"STOP",))
    assert detokenizer.push(list(b"go STO")) == "go "
    assert detokenizer.finish(None) == "STO"


def test_a_completed_stop_stays_hidden_until_the_engine_speaks():
    detokenizer = Detokenizer(BYTES, {}, stops=(b"END",))
    assert detokenizer.push(list(b"a END")) == "a "
    assert detokenizer.push([]) == ""
    assert detokenizer.finish(2) == ""


def test_a_stop_that_the_engine_let_pass_is_text():
    detokenizer = Detokenizer(BYTES, {}, stops=(b"END",))
    assert detokenizer.push(list(b"a END")) == "a "
    assert detokenizer.push(list(b" b")) == "END b"
    assert detokenizer.push(list(b" END")) == " "
    assert detokenizer.finish(8) == ""


def test_keep_stop_shows_the_stop_string_and_nothing_behind_it():
    detokenizer = Detokenizer(BYTES, {}, stops=(b"END", b"ENDING"), keep_stop=True)
    assert detokenizer.push(list(b"a EN")) == "a EN"
    assert detokenizer.push(list(b"DING")) == "D"
    assert detokenizer.finish(2) == ""


def test_control_tokens_are_shown_only_on_request():
    table, special = [b"a", b"", b"b"], {1: b"<|x|>"}
    assert Detokenizer(table, special).push([0, 1, 2]) == "ab"
    shown = Detokenizer(table, special, skip_special=False)
    assert [shown.push([0]), shown.push([1, 1]), shown.push([2])] == ["a", "<|x|><|x|>", "b"]
    assert shown.finish(None) == ""


@pytest.mark.parametrize(
    ("keep_stop", "text"), [(False, "<|x|>a<|x|>"), (True, "<|x|>a<|x|>b<|x|>a")]
)
def test_a_stop_string_goes_on_behind_control_tokens_that_are_shown(keep_stop, text):
    """As the engine matches it, which sees no text of control tokens; nothing of it gets out."""
    table, special = [b"a", b"", b"b"], {1: b"<|x|>"}
    for pieces in ([[1], [0], [1], [2], [1], [0]], [[1, 0, 1], [2, 1, 0]], [[1, 0, 1, 2, 1, 0]]):
        shown = Detokenizer(table, special, skip_special=False, stops=(b"ba",), keep_stop=keep_stop)
        said = [shown.push(ids) for ids in pieces]
        assert all(text.startswith("".join(said[:n])) for n in range(len(said)))
        assert "".join(said) + shown.finish(1) == text
        assert [shown.kept_tokens(n) for n in range(4)] == [1, 3, 5, 6]
    held = Detokenizer(table, special, skip_special=False, stops=(b"ba",))
    assert [held.push([2]), held.push([1]), held.push([2])] == ["", "", "b<|x|>"]
    assert held.finish(None) == "b"


def test_ids_outside_the_table_add_nothing():
    assert Detokenizer([b"a"], {}).push([0, 7, -1, 0]) == "aa"


def test_kept_tokens_end_before_the_cut():
    detokenizer = Detokenizer([b"ab", b"", b"cd", b"ef"], {1: b"<|x|>"}, stops=(b"de",))
    detokenizer.push([0, 1, 2, 3])
    assert [detokenizer.kept_tokens(n) for n in range(7)] == [0, 0, 2, 2, 3, 3, 4]


def test_bytes_of_tokens_join_to_the_exact_output():
    table, special = [*BYTES, b""], {256: b"<|end|>"}
    ids = [*LLAMA.encode(), 256]
    exact = b"".join(output_bytes(table, special, token, True) for token in ids)
    assert exact.decode() == LLAMA
    assert output_bytes(table, special, 256, False) == b"<|end|>"
    assert output_bytes(table, special, 999, False) == b""


def test_long_near_misses_are_held_back():
    stop = b"a" * 1000 + b"b"
    detokenizer = Detokenizer(BYTES, {}, stops=(stop,) * 16)
    shown = sum(len(detokenizer.push([97])) for _ in range(20_000))
    assert shown == 19_000
    assert len(detokenizer.finish(None)) == 1000
