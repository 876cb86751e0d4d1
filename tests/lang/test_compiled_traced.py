"""What compile() finds: values in texts, constants, what can go on side by side."""

import json

import pytest

import radixserve.lang as sgl

TABLE = {"fox": "quick"}


def spelt(word):
    return f"<{word}>"


def steps_of(program, *args, **kwargs):
    return program.compile(*args, **kwargs).graph["steps"]


def texts_of(program, *args, **kwargs):
    return [step["text"] for step in steps_of(program, *args, **kwargs) if step["do"] == "text"]


WORD = {"arg": "word"}
SHOWN = {"arg": "word", "format": True}


# ---- texts with values in them ----


def by_fstring(s, word):
    s += f"the {word}!"


def by_two_in_one(s, word):
    s += f"{word} and {word}"


def by_sum(s, word):
    s += "the " + word + "!"


def by_growing(s, word):
    text = "the "
    text += word
    s += text + "!"


def by_join(s, word):
    s += " ".join(["the", word, "x"])


def by_percent(s, word):
    s += "the %s!" % word  # noqa: UP031 - as people write it


def by_format(s, word):
    s += "the {}!".format(word)  # noqa: UP032 - as people write it


def by_str(s, word):
    s += "the " + str(word)


def by_helper(s, word):
    s += spelt(word)


def by_nested(s, word):
    inner(s, word)
    s += inner(word)


@sgl.function
def inner(s, word):
    s += f"[{word}]"


@pytest.mark.parametrize(
    ("func", "texts"),
    [
        (by_fstring, [["the ", SHOWN, "!"]]),
        (by_two_in_one, [[SHOWN, " and ", SHOWN]]),
        (by_sum, [["the ", WORD, "!"]]),
        (by_growing, [["the ", WORD, "!"]]),
        (by_join, [["the ", WORD, " x"]]),
        (by_percent, [["the ", SHOWN, "!"]]),
        (by_format, [["the ", SHOWN, "!"]]),
        (by_str, [["the ", SHOWN]]),
        (by_helper, [["<", SHOWN, ">"]]),
        (by_nested, [["[", SHOWN, "]"]] * 2),
    ],
)
def test_a_value_is_found_in_a_text(func, texts):
    assert texts_of(sgl.function(func)) == texts


def test_constants_are_folded():
    @sgl.function
    def program(s, word, n=2, *, more):
        for i in range(n):
            s += f"{i}. {word} {more} {TABLE['fox']}; "

    assert texts_of(program, more="x") == [[f"{i}. ", SHOWN, " x quick; "] for i in range(2)]
    assert texts_of(program, "fox", 1, more="x") == ["0. fox x quick; "]
    again = program.bind(more="y").compile(n=1)
    assert again.parameters == ("word",)
    open_ends = program.compile(more=sgl.placeholder, n=1)
    assert open_ends.parameters == ("word", "more")


def test_values_of_calls_are_used_where_they_stand():
    @sgl.function
    def program(s, word):
        s += "a" + sgl.gen("x") + sgl.gen("xs", n=2)
        s += f"{s['x']} {word}" + s["xs"][1]
        s["both"] = [s["x"], {"w": word}, 1.5, None, ("t", f"{word}.")]
        g = s.fork(2)
        g += sgl.gen("y")
        g.join()
        s += ", ".join(s["y"])
        return s["both"][0], s["y"]

    steps = steps_of(program)
    assert steps[3]["text"] == [{"ref": 1, "format": True}, " ", SHOWN, {"ref": 2, "item": 1}]
    text = {"text": [SHOWN, "."]}
    assert steps[4]["value"] == {
        "list": [{"ref": 1}, {"dict": {"w": WORD}}, 1.5, None, {"tuple": ["t", text]}]
    }
    assert steps[9]["text"] == [{"ref": 6}, ", ", {"ref": 7}]
    returns = program.compile().graph["returns"]
    assert returns == {"tuple": [{"ref": 1}, {"list": [{"ref": 6}, {"ref": 7}]}]}
    state = program.compile().run("w", backend=sgl.Mock(lambda p, b: "r"))
    assert state["both"] == ["r", {"w": "w"}, 1.5, None, ("t", "w.")]


def test_calls_that_need_nothing_of_each_other_are_one_wave():
    @sgl.function
    def program(s):
        g = s.fork(2)
        for child in g:
            child += "a" + sgl.gen("x")
            child += f"{child['x']}" + sgl.gen("y")  # interpreted, the second waits here
        g[1] += f"{g[0]['y']}" + sgl.gen("z")
        g.join()
        s += "".join(s["y"]) + sgl.select("best", ["a", "b"])

    compiled = program.compile()
    names = [[compiled.graph["steps"][n]["name"] for n in wave] for wave in compiled.waves]
    assert names == [["x", "x"], ["y", "y"], ["z"], ["best"]]


def test_what_two_branches_do_goes_on_side_by_side():
    """Each second call waits until both first ones are made: one after the other would hang."""
    import threading

    gate = threading.Barrier(2, timeout=5)

    def script(prompt, body):
        if body["program"]["call"].endswith(".1"):
            gate.wait()
        return "r"

    @sgl.function
    def program(s):
        g = s.fork(2)
        for child in g:
            child += "a" + sgl.gen("x")
            child += f"{child['x']}" + sgl.gen("y")
            child["z"] = child["y"]

    program.compile().run(backend=sgl.Mock(script))
    assert not gate.broken


def test_the_constant_prefix_ends_at_the_first_value():
    @sgl.function
    def program(s, word):
        s += sgl.system("be brief") + sgl.user(f"what of the {word}?")

    compiled = program.compile()
    assert compiled.constant_prefix == "SYSTEM: be brief\nUSER: what of the "
    mock = sgl.Mock()
    assert compiled.warm(mock) == len("be brief" + "what of the ") + 3  # with marks of roles
    assert program.warm(backend=mock) == compiled.warm(mock)


def test_a_dynamic_program_has_a_constant_prefix_too():
    @sgl.function
    def program(s, word):
        s += "always this. " + sgl.gen("x")
        if s["x"] == "y":
            s += "more"

    assert program.warm(backend=sgl.Mock()) == len("always this. ")
    with pytest.raises(sgl.Unsupported, match="Replay"):
        program.warm(backend=sgl.Replay([]))


def test_it_is_drawn(capsys):
    @sgl.function
    def program(s, word):
        s += f"{word}: " + sgl.gen("x") + "so "
        s += f"{s['x']}?" + sgl.select("y", ["a", "b"])

    program.compile().draw()
    assert capsys.readouterr().out.splitlines() == [
        "program",
        "└─ gen x  [0]",
        "     '{word}: '",
        "   └─ select y of ['a', 'b']  [1]",
        "        'so {x}?'",
    ]


def test_a_value_given_is_no_value_of_a_run():
    @sgl.function
    def program(s, word, n):
        s += word.strip().upper() * int(n)
        if len(word) > 3:
            s += "!"

    assert texts_of(program, " fox", "2") == ["FOXFOX", "!"]


def test_an_open_argument_may_be_anything_that_can_be_shown():
    @sgl.function
    def program(s, word):
        s += f"{word}"
        s["w"] = word

    state = program.compile().run([1, "x"], backend=sgl.Mock())
    assert (state.text(), state["w"]) == ("[1, 'x']", [1, "x"])

    @sgl.function
    def as_text(s, word):
        s += "a" + word

    with pytest.raises(TypeError, match="argument 'word' stands for a text"):
        as_text.compile().run(5, backend=sgl.Mock())


def test_arguments_are_checked():
    @sgl.function
    def program(s, word, often=1):
        s += f"{word}{often}"

    compiled = program.compile()
    with pytest.raises(TypeError, match="its parameters are: word"):
        compiled.run("a", often=5, backend=sgl.Mock())
    with pytest.raises(TypeError, match="word"):
        compiled.run(backend=sgl.Mock())
    with pytest.raises(TypeError, match="item of run_batch"):
        compiled.run_batch(["a"], backend=sgl.Mock())


def test_json_of_others_is_read_strictly():
    for text, pointer in (
        ("{", ""),
        ("[]", ""),
        ('{"radixserve_program": 2, "steps": []}', "/radixserve_program"),
        ('{"radixserve_program": 1, "steps": [], "x": 1}', "/x"),
        ('{"radixserve_program": 1, "steps": [], "parameters": ["a b"]}', "/parameters/0"),
        ('{"radixserve_program": 1, "steps": [], "parameters": ["a", "a"]}', "/parameters"),
        ('{"radixserve_program": 1, "steps": [], "returns": {"ref": 0}}', "/returns"),
        ("[" * 100_000, ""),
    ):
        with pytest.raises(sgl.GraphError) as caught:
            sgl.Compiled.from_json(text)
        assert caught.value.pointer == pointer


def test_what_is_python_has_no_json_form():
    class Mine:
        name, needs_unconditional = "mine", False

        def decide(self, candidates):
            return sgl.probability.decide(candidates)

    @sgl.function
    def own_method(s):
        s += "a" + sgl.select("x", ["a", "b"], choices_method=Mine())

    @sgl.function
    def object_in_text(s):
        s += "a" + sgl.gen("x", schema=int)
        s += f"{s['x']}"

    for program in (own_method, object_in_text):
        compiled = program.compile()
        assert compiled.run(backend=sgl.Mock()).text()
        with pytest.raises(sgl.ProgramError, match="has no JSON form"):
            compiled.to_json()
    json.dumps(own_method.compile().graph)
