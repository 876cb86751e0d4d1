"""The tutorial runs, block after block; the language's page names what there is."""

import inspect
import json
import pathlib
import re

import pytest

import radixserve as rs
from radixserve.lang.runnable import BatchArguments
from radixserve.lang.sampling import RunDefaults

DOCS = pathlib.Path(__file__).resolve().parent.parent.parent / "docs"


def blocks(name):
    return re.findall(r"^```python\n(.*?)^```", (DOCS / name).read_text(), re.M | re.S)


def test_the_tutorial_runs(tiny_folder, capsys):
    """On the tiny model; what the model says is not checked, what must hold is asserted there."""
    namespace = {"__name__": "tutorial"}
    code = blocks("tutorial.md")
    assert len(code) > 10
    try:
        for number, block in enumerate(code):
            text = block.replace('"smollm2"', repr(str(tiny_folder)) + ", inline=True")
            exec(compile(text, f"tutorial.md, block {number}", "exec"), namespace)
    finally:
        rs.set_default_backend(None)
        if "engine" in namespace:
            namespace["engine"].close()
    assert re.search(r"^call +name +prompt", capsys.readouterr().out, re.M)


@pytest.mark.parametrize("name", ["language.md", "tutorial.md"])
def test_every_name_of_the_docs_is_there(name):
    names = set(re.findall(r"\brs\.([A-Za-z_]\w*)", (DOCS / name).read_text()))
    assert {each for each in names if not hasattr(rs, each)} == set()


def test_the_page_of_the_language_has_every_argument_and_method():
    page = (DOCS / "language.md").read_text()
    arguments = {*RunDefaults.__annotations__, *BatchArguments.__annotations__}
    for kind in (rs.function, rs.Mock):
        assert kind.__name__ in page
    for method in (rs.lang.Program.run, rs.lang.Program.arun, rs.lang.Program.run_batch):
        arguments |= set(inspect.signature(method).parameters)
    arguments -= {"self", "args", "kwargs", "batch_kwargs", "options"}
    methods = {name for name in dir(rs.ProgramState) if not name.startswith("_")}
    missing = {name for name in arguments | methods if name not in page}
    assert missing == set()


def test_every_exported_name_is_on_the_page():
    page = (DOCS / "language.md").read_text()
    beside = {
        "image", "Runtime", "ForkGroup", "ProgramState", "AsyncState",
        "AsyncForkGroup", "EngineBackend", "ChoicesMethod", "Program", "flush_cache",
        "get_server_info", "set_default_backend", "system_begin", "system_end", "assistant_begin",
        "assistant_end",
    }  # fmt: skip
    assert {name for name in rs.lang.__all__ if name not in page} <= beside


def test_the_compiled_program_of_the_page(tiny_engine, tmp_path):
    namespace = {"rs": rs}
    [code] = blocks("language.md")
    page = tmp_path / "language.py"  # compile() reads the source of what it compiles
    page.write_text(code)
    exec(compile(code, str(page), "exec"), namespace)
    compiled, card = namespace["compiled"], namespace["card"]
    assert compiled.parameters == ("country",)
    assert compiled.constant_prefix == "SYSTEM: Be brief.\nUSER: What is the capital of "
    assert [len(wave) for wave in compiled.waves] == [1, 2]
    here = card.run("Japan", backend=tiny_engine, temperature=0)
    there = compiled.run("Japan", backend=tiny_engine, temperature=0)
    assert there.ret_value == here.ret_value


def test_the_program_of_the_route_runs(tiny_engine):
    [body] = re.findall(r"-d '(\{.*?\})'\n```", (DOCS / "programs.md").read_text(), re.S)
    reply = tiny_engine.program(json.loads(body))
    assert len(reply["returns"]) == 3
    assert reply["variables"]["in"][1] in ("Europe", "Asia", "Africa")


def test_the_page_of_the_route_has_every_field_and_step():
    from radixserve.lang.choices import METHODS
    from radixserve.lang.compiled.reading import _KINDS
    from radixserve.programs.request import ProgramBody

    page = (DOCS / "programs.md").read_text()
    names = {*ProgramBody.__struct_fields__, *_KINDS, *METHODS}
    assert {name for name in names if f"`{name}`" not in page and f"`{name}:" not in page} == set()
