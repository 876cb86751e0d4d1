"""What compile() refuses: whatever looks at a value that only a run has."""

import random
import re

import pytest

import radixserve.lang as sgl
from tests.lang.test_compiled_traced import TABLE, spelt


def looks_at_it(s, word):
    if word == "x":
        s += "y"


def looks_into_a_text(s, word):
    text = f"the {word}"
    s += text
    if "fox" in text:
        s += "!"


def matches_a_text(s, word):
    text = f"the {word}"
    s += text
    if re.search("fox", text):
        s += "!"


def measures_it(s, word):
    s += "x" * len(word)


def strips_it(s, word):
    s += word.strip()


def looks_it_up(s, word):
    s += TABLE[word]


def splits_it(s, word):
    for each in word.split():
        s += each


def counts_with_it(s, word):
    for _ in range(word):
        s += "x"


def formats_it(s, word):
    s += f"{word:>10}"


def quotes_it(s, word):
    s += f"{word!r}"


def asks_its_type(s, word):
    if isinstance(word, str):
        s += word


def prints_it(s, word):
    s += word
    print(f"{word}")


def prints_a_text_of_a_helper(s, word):
    s += word
    print(spelt(word))


def changes_a_text_of_a_helper(s, word):
    s += spelt(word).upper()


def measures_a_text_of_a_helper(s, word):
    s += spelt(word)
    if len(spelt(word)) > 8:
        s += "!"


def names_a_variable(s, word):
    s += sgl.gen(word)


def names_a_variable_by_a_helper(s, word):
    s += sgl.gen(spelt(word))


def bounds_a_call(s, word):
    s += sgl.gen("x", max_tokens=word)


def binds_a_call(s, word):
    s += sgl.gen("x", regex=spelt(word))


def draws_at_random(s, word):
    s += str(random.random())


def keeps_something(s, word, seen=[]):  # noqa: B006 - the fault
    seen.append(1)
    s += f"{len(seen)}"


def reads_meta_information(s, word):
    s += sgl.gen("x")
    s += str(s.get_meta_info("x"))


def reads_messages(s, word):
    s += str(s.messages())


def handles_an_error(s, word):
    try:
        s += sgl.gen("x")
        s += s["x"]
    except ValueError:
        s += "no"


def cleans_up(s, word):
    s += sgl.gen("x")
    try:
        s += s["x"]
    finally:
        s += "end"


def asks_for_the_error(s, word):
    s += sgl.gen("x")
    s.error()


def returns_an_object(s, word):
    return object()


def swallows_it(s, word):
    import contextlib

    with contextlib.suppress(Exception):
        int(word)


def reads_what_is_not_there(s, word):
    s += s["nothing"]


REFUSED = [
    looks_at_it, looks_into_a_text, matches_a_text, measures_it, strips_it, looks_it_up, splits_it,
    counts_with_it, formats_it, quotes_it, asks_its_type, prints_it, prints_a_text_of_a_helper,
    changes_a_text_of_a_helper, measures_a_text_of_a_helper, names_a_variable,
    names_a_variable_by_a_helper, bounds_a_call, binds_a_call, draws_at_random, keeps_something,
    reads_meta_information, reads_messages, handles_an_error, cleans_up, asks_for_the_error,
    returns_an_object, swallows_it, reads_what_is_not_there,
]  # fmt: skip


@pytest.mark.parametrize("func", REFUSED)
def test_what_looks_at_a_value_is_refused(func):
    with pytest.raises(sgl.DynamicProgram) as caught:
        sgl.function(func).compile()
    line = caught.value.line
    if line:  # a text of a helper is missed only afterwards
        first = func.__code__.co_firstlineno
        assert first <= line <= first + 10 or line == spelt.__code__.co_firstlineno + 1
    assert str(caught.value)
