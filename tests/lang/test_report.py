"""explain(), show(), html(), trace() and draw()."""

import asyncio
import re

import pytest

import radixserve.lang as sgl


@sgl.function
def program(s, topic):
    s += sgl.system("be brief") + sgl.user("about " + topic)
    s += sgl.assistant("Well, " + sgl.gen("first", max_tokens=8, stop="."))
    g = s.fork(2)
    for i, child in enumerate(g):
        child += sgl.user(f"point {i}") + sgl.assistant(sgl.gen("point", regex="[a-c]{3}"))
    g.join()
    s += sgl.user("good?")
    s += sgl.assistant(sgl.select("good", ["yes", "no"]))
    return s["first"]


def script(prompt, body):
    if "regex" in body["sampling_params"]:
        raise sgl.BackendError(500, "exhausted", "made up instead")
    return "it is <so>. And"


def run(**options):
    return program.run("dogs", backend=sgl.Mock(script), **options)


def test_every_call_is_explained():
    state = run()
    calls = {each.call: each for each in state.explain().calls}
    assert list(calls) == ["0", "1.0.0", "1.1.0", "2"] or set(calls) == {"0", "1.0.0", "1.1.0", "2"}
    first, point, good = calls["0"], calls["1.0.0"], calls["2"]
    assert (first.kind, first.name, first.parent, first.constraint) == (
        "generate",
        "first",
        "",
        None,
    )
    assert (point.parent, point.constraint) == ("0", "regex")
    assert (good.kind, good.constraint, good.text) == ("choose", "choices", state["good"])
    meta = state.get_meta_info("first")
    assert (first.prompt_tokens, first.cached_tokens) == (
        meta["prompt_tokens"],
        meta["cached_tokens"],
    )
    assert first.computed_tokens == first.prompt_tokens
    # The choices go on from what the first call knew: that and its output were cached.
    assert good.cached_tokens >= first.prompt_tokens
    assert first.text == "it is <so>"
    assert (first.finish, first.tries, first.error) == ("stop", 1, None)
    assert first.seconds >= 0


def test_the_table_has_a_line_for_each_call_and_a_total():
    head, *lines, total = str(run().explain()).splitlines()
    assert head.split() == [
        "call", "name", "prompt", "cached", "computed", "output", "ms", "waited", "constraint",
        "end",
    ]  # fmt: skip
    assert [line.split()[0] for line in lines] == ["0", "1.0.0", "1.1.0", "2"]
    assert "regex" in lines[1]
    found = re.fullmatch(
        r"4 calls, (\d+) prompt tokens, (\d+) of them cached, (\d+) computed; .*", total
    )
    prompt, cached, computed = map(int, found.groups())
    assert prompt == cached + computed > computed


def test_a_call_that_failed_is_explained_too():
    @sgl.function
    def failing(s):
        s += "q" + sgl.gen("x")
        s.error()

    explained = failing.run(backend=sgl.Mock()).explain()
    assert "no reply left" in explained.calls[0].error
    assert "BackendError" in str(explained)


def test_pieces_have_their_origin_and_their_share_of_the_cache():
    mock = sgl.Mock(script)
    program.run("dogs", backend=mock)
    state = program.run("cats", backend=mock)
    pieces = state.explain().pieces
    origins = [(piece.origin, piece.text) for piece in pieces]
    assert origins[:3] == [("mark", "SYSTEM: "), ("constant", "be brief"), ("mark", "\n")]
    assert ("generated", "it is <so>") in origins
    assert origins[-2] == ("selected", state["good"])
    assert "".join(text for _, text in origins) == state.text()
    by_text = {piece.text: piece for piece in pieces}
    brief = by_text["be brief"]
    assert brief.cached == brief.tokens > 0  # the other run had it
    about = by_text["about cats"]
    assert 0 < about.cached < about.tokens
    assert by_text["it is <so>"].cached == 0
    sent = state.explain().calls[-1].prompt_tokens
    assert sum(piece.tokens for piece in pieces[:-2]) == sent


def test_the_terminal_view_is_the_text_with_colours():
    state = run()
    shown = state.explain().show()
    assert re.sub("\x1b\\[[0-9]+m", "", shown) == state.text()
    assert "\x1b[32mit is <so>\x1b[0m" in shown
    assert f"\x1b[36m{state['good']}\x1b[0m" in shown


def test_the_browser_view_is_the_text_escaped():
    state = run()
    view = state.explain().html()
    assert view == state.explain()._repr_html_()
    body = re.search(r'<div class="radixserve">(.*)</div>', view, re.S)[1]
    import html

    assert html.unescape(re.sub("<[^>]+>", "", body)) == state.text()
    assert "it is &lt;so&gt;" in body
    assert 'class="generated"' in body


def test_an_async_state_is_explained_too():
    @sgl.function
    async def one(s):
        s += "q" + sgl.gen("x")
        return len((await s.explain()).calls)

    assert asyncio.run(one.arun(backend=sgl.Mock(["x"]))).ret_value == 1


def test_a_program_is_drawn_without_a_model(capsys):
    program.draw()
    drawn = capsys.readouterr().out
    assert drawn == (
        "program\n"
        "└─ gen first  [0]\n"
        "     'SYSTEM: be brief\\nUSER: about {topic}\\nASSISTANT: Well, '\n"
        "   ├─ gen point  [1.0.0]\n"
        "   │    '\\nUSER: point 0\\nASSISTANT: '\n"
        "   ├─ gen point  [1.1.0]\n"
        "   │    '\\nUSER: point 1\\nASSISTANT: '\n"
        "   └─ select good of ['yes', 'no']  [2]\n"
        "        '\\nUSER: good?\\nASSISTANT: '\n"
    )


def test_a_trace_names_what_depends_on_what():
    @sgl.function
    def chained(s, n, suffix="!"):
        for _ in range(n):
            s += f"{suffix}" + sgl.gen("x")
        s += f" so {s['x']}" + sgl.gen()

    traced = chained.trace(n=2)
    assert [(each.call, each.parent, each.name) for each in traced.calls] == [
        ("0", "", "x"),
        ("1", "0", "x"),
        ("2", "1", None),
    ]
    assert [each.new_text for each in traced.calls] == ["!", "!", " so {x}"]
    assert traced.program == "chained"
    assert chained.bind(suffix="?").trace(2).calls[0].new_text == "?"


def test_async_programs_are_traced_too():
    @sgl.function
    async def one(s, word):
        s += word + sgl.gen("x")
        s += f"[{await s['x']}]" + sgl.select("y", ["a", "b"])

    assert [each.new_text for each in one.trace().calls] == ["{word}", "[{x}]"]


def test_a_trace_fails_as_the_program_does():
    @sgl.function
    def broken(s):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        broken.trace()


def test_what_a_call_waited_for_is_part_of_its_time(tiny_engine):
    @sgl.function
    def program(s):
        s += "the quick" + sgl.gen("x", regex="[a-c]{7}", max_tokens=16)
        s += sgl.select("y", [" a", " b"])

    explained = program.run(backend=tiny_engine).explain()
    assert all(0 < each.waited < each.seconds for each in explained.calls)
    rows = str(explained).splitlines()
    assert [f"{each.waited * 1000:.1f}" for each in explained.calls] == [
        row.split()[7] for row in rows[1:3]
    ]
