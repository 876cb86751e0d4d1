"""The words of the language: what they accept, and what they refuse by name."""

import ast
import pathlib
import subprocess
import sys

import pytest

import radixserve.lang as sgl


@pytest.mark.parametrize(
    "call",
    [
        lambda: sgl.select("x", ["a"], temperature=0.5),
        lambda: sgl.gen("x", choices=["a"], temperature=0.5),
        lambda: sgl.image("a.png"),
        lambda: sgl.video("a.mp4", 8),
        lambda: sgl.Runtime(model_path="m"),
        lambda: sgl.RuntimeEndpoint("http://localhost", chat_template_name="chatml"),
    ],
)
def test_what_is_missing_raises_at_once(call):
    with pytest.raises(NotImplementedError):
        call()


def test_the_refusal_names_the_parameter():
    with pytest.raises(NotImplementedError, match=r"temperature 0\.5"):
        sgl.select("x", ["a"], temperature=0.5)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), 10**400, True, "5"])
def test_a_timeout_is_a_number_of_seconds(timeout):
    program = sgl.function(lambda s: None)
    for call in (
        lambda: sgl.gen("x", timeout=timeout),
        lambda: sgl.select("x", ["a"], timeout=timeout),
        lambda: program.run(timeout=timeout, backend=sgl.Mock()),
    ):
        with pytest.raises((TypeError, ValueError), match="finite number of seconds above 0, not "):
            call()


@pytest.mark.parametrize(
    ("stop_regex", "error"), [("", ValueError), (["a", ""], ValueError), (3, TypeError)]
)
def test_a_pattern_to_stop_at_is_a_text(stop_regex, error):
    with pytest.raises(error):
        sgl.gen("x", stop_regex=stop_regex)
    with pytest.raises(error):
        sgl.function(lambda s: None).run(stop_regex=stop_regex, backend=sgl.Mock())


def test_reasoning_is_told_apart_of_gens_that_have_a_name():
    chain = sgl.separate_reasoning("so: " + sgl.gen("x", max_tokens=3) + sgl.gen(), "qwen3")
    text, gen, thoughts, nameless = chain.items
    assert (text.value, gen.name, nameless.name) == ("so: ", "x", None)
    assert (gen.sampling.separate_reasoning, gen.sampling.max_new_tokens) == (True, 3)
    assert (thoughts.name, thoughts.of) == ("x_reasoning_content", "x")
    for expr in ("a", sgl.gen(), sgl.select("x", ["a"])):
        with pytest.raises(ValueError, match="separate_reasoning"):
            sgl.separate_reasoning(expr)
    with pytest.raises(TypeError, match="model_type"):
        sgl.separate_reasoning(sgl.gen("x"), 3)


@pytest.mark.parametrize(
    ("choices", "error"),
    [([], ValueError), (None, ValueError), ("yes", TypeError), (["a", 1], TypeError)],
)
def test_bad_choices_raise_in_user_code(choices, error):
    with pytest.raises(error, match="choices"):
        sgl.select("x", choices)


def test_sampling_parameters_do_not_fit_a_choice():
    with pytest.raises(ValueError, match="max_new_tokens"):
        sgl.gen("x", choices=["a"], max_tokens=3)
    with pytest.raises(ValueError, match="choices_method"):
        sgl.gen("x", choices_method=sgl.greedy_token_selection)


def test_a_name_is_a_string():
    with pytest.raises(TypeError, match="name"):
        sgl.gen(3)
    with pytest.raises(TypeError, match="name"):
        sgl.select(["a", "b"])


def test_only_strings_and_expressions_add_up():
    with pytest.raises(TypeError, match="append"):
        sgl.gen("x") + 3
    with pytest.raises(TypeError, match="append"):
        None + sgl.gen("x")


def imported_names(source: str) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or ".")
    return names


OTHERS = {
    ("httpx", "transport.py"),
    ("pydantic", "typed.py"),
    ("typing_extensions", "typed.py"),
    ("typing_extensions", "toolmaking.py"),
}


def test_lang_imports_nothing_of_the_runtime():
    files = list(pathlib.Path(sgl.__file__).parent.rglob("*.py"))
    assert len(files) > 15
    for path in files:
        for name in imported_names(path.read_text()):
            if name.startswith("radixserve"):
                assert name.startswith("radixserve.lang"), path
            else:
                top = name.split(".")[0]
                assert top in sys.stdlib_module_names or (top, path.name) in OTHERS


def test_lang_loads_no_torch_and_httpx_only_for_an_endpoint():
    code = (
        "import sys, radixserve.lang as sgl\n"
        "loaded = {'torch', 'httpx', 'transformers', 'pydantic'} & set(sys.modules)\n"
        "sgl.RuntimeEndpoint('http://localhost').close()\n"
        "assert 'httpx' in sys.modules\n"
        "assert not loaded, loaded"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_patterns_to_stop_at_of_a_run_and_of_a_gen(run):
    def program(s):
        s += sgl.gen("a") + sgl.gen("b", stop_regex=["z", "o."]) + sgl.gen("c", stop_regex=[])

    replies = ["one 12 dogs", "foxes", "7"]
    mock = sgl.Mock(replies)
    state = run(program, mock, stop_regex=r"\d")
    graph = sgl.function(program).compile().to_json()
    served = sgl.Compiled.from_json(graph).run(backend=sgl.Mock(replies), stop_regex=r"\d")
    assert served.text() == state.text()
    assert (state["a"], state["b"], state["c"]) == ("one 1", "fox", "7")
    reasons = [state.get_meta_info(name)["finish_reason"]["matched"] for name in "abc"]
    assert reasons == [r"\d", "o.", 257]
    sent = [call["sampling_params"].get("stop_regex") for call in mock.calls]
    assert sent == [[r"\d"], ["z", "o."], None]
    assert state.text() == "one 1fox7"
