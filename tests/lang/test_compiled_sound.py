"""A compiled program never does something else in silence: it is the same, or it is refused."""

import contextlib
import functools
import json
import random
import re
import string

import pytest

import radixserve.lang as sgl


def quoted(word):
    text = f"<{word}>"
    return "long" if len(text) > 40 else text


def named(word):
    return "none" if word is None else f"{word}"


def passed_on(func):
    @functools.wraps(func)
    def call(*args, **kwargs):
        return func(*args, **kwargs)

    return call


class Card:
    def __init__(self, word):
        self.word = word

    def __str__(self):
        return "fox" if f"{self.word}" == "fox" else "other"


def asks_a_text(make):
    def program(s, word):
        text = make(word)
        if text == "fox!":
            s += "It is. "
        s += text

    return sgl.function(program)


by_str = asks_a_text(lambda word: str(word) + "!")
by_format = asks_a_text(lambda word: "{}!".format(word))  # noqa: UP032
by_keywords = asks_a_text(lambda word: "{w}!".format_map({"w": word}))
by_percent = asks_a_text(lambda word: "%s!" % word)  # noqa: UP031
by_percents = asks_a_text(lambda word: "%(w)s!" % {"w": word})  # noqa: UP031
by_builtin = asks_a_text(lambda word: format(word) + "!")
by_template = asks_a_text(lambda word: string.Template("$w!").substitute(w=word))
by_json = asks_a_text(lambda word: json.dumps({"w": word}, default=lambda _: "?"))
by_map = asks_a_text(lambda word: "".join(map(str, [word, "!"])))
by_eval = asks_a_text(lambda word: eval("f'{word}!'"))
by_dunder = asks_a_text(lambda word: word.__format__("") + "!")
by_object = asks_a_text(lambda word: f"{Card(word)}!")
by_partial = asks_a_text(lambda word: functools.partial(quoted, word)())


@sgl.function
def by_width(s, word):
    s += "%-3s|" % word  # noqa: UP031


@sgl.function
def by_conversion(s, word):
    s += "{!s:>2}|".format(word)  # noqa: UP032


@sgl.function
def by_helper(s, word):
    s += quoted(word)


@sgl.function
def by_helper_of_none(s, word):
    s += named(word)


@sgl.function
def by_mapped_helper(s, word):
    s += "".join(map(named, [word]))


@sgl.function
def by_is(s, word):
    s += "none" if word is None else f"{word}"


@sgl.function
def by_match(s, word):
    match word:
        case None:
            s += "none"
        case other:
            s += f"{other}"


@sgl.function
def by_type(s, word):
    s += f"{type(word) is str} {word}"


@sgl.function
def by_callable(s, word):
    s += f"{callable(word)} {word}"


@sgl.function
def by_attribute(s, word):
    s += f"{word.label} {word.pieces} {word.recorder}"


@sgl.function
def by_regex(s, word):
    s += "yes" if re.match("fox", str(word)) else f"{word}"


@sgl.function
@passed_on
def by_decorated(s, word):
    s += "yes" if str(word) == "fox" else f"{word}"


@sgl.function
def by_a_list_that_grows(s, word):
    kept = [1]
    s["kept"] = kept
    kept.append(2)
    s += f"{word}"


@sgl.function
def by_outputs_that_grow(s, word):
    s += sgl.gen("kept", n=2)
    s["kept"].append(word)


@sgl.function
def by_chance(s, word):
    s += f"{word}" if random.random() < 2 else "never"


@sgl.function
def by_suppressing(s, word):
    with contextlib.suppress(sgl.LangError):
        s += sgl.gen("x") + f"{word}"
        s.sync()


space = {}
exec("def without_source(s, word):\n    s += 'yes' if str(word) == 'fox' else str(word)", space)
without_source = sgl.function(space["without_source"])

LOOKING = [each for name, each in list(globals().items()) if name.startswith(("by_", "without_"))]


@pytest.mark.parametrize("program", LOOKING, ids=lambda each: each.__name__)
def test_what_looks_in_silence_is_refused(program):
    with pytest.raises(sgl.DynamicProgram) as caught:
        program.compile()
    assert caught.value.line


@sgl.function
def shown(s, word):
    s += f"{word}, {word!s}, " + str(word) + ", %s" % word + ", {}".format(word)  # noqa: UP031, UP032
    s += passed_on(named_plainly)(word) + ", ".join(map(str.strip, ["a ", "b"]))


def named_plainly(word):
    return f"<{word}>"


def counted_down(s, word, left):
    if left:
        s += f"{left} {word} "
        counted_down(s, word, left - 1)


@sgl.function
def recursive(s, word):
    counted_down(s, word, 2)


def test_a_helper_that_calls_itself_is_followed():
    assert recursive.compile().run("x", backend=sgl.Mock()).text() == "2 x 1 x "


class TwoTexts:
    def __format__(self, spec):
        return "one"

    def __str__(self):
        return "other"


@pytest.mark.parametrize("word", ["fox", "", 7, 0.5, None, True, [1, "a"], {"a": 1}])
def test_what_is_shown_is_the_same_both_ways(word):
    ways = [each.run(word, backend=sgl.Mock()).text() for each in (shown, shown.compile())]
    assert ways[0] == ways[1]


@pytest.mark.parametrize("word", [TwoTexts(), (1, 2)])
def test_what_could_be_two_texts_is_refused_where_it_is_run(word):
    with pytest.raises(sgl.MisusedValue, match="differently"):
        shown.compile().run(word, backend=sgl.Mock())


def test_source_that_changed_is_not_taken(tmp_path):
    path = tmp_path / "changing.py"
    text = "def f(s, word, a=1, b=2):\n    s += f'{word}' + str(a - b)\n"
    path.write_text(text)
    space = {}
    exec(compile(text, str(path), "exec"), space)
    path.write_text(text.replace("a - b", "b - a") + "# more\n")
    with pytest.raises(sgl.DynamicProgram, match="source"):
        sgl.function(space["f"]).compile()


def test_a_placeholder_is_no_part_of_an_argument():
    @sgl.function
    def program(s, words):
        s += f"{words[0]}"

    with pytest.raises((sgl.DynamicProgram, TypeError), match="whole argument"):
        program.compile(words=[sgl.placeholder])
