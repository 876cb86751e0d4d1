"""The house rules that no ready-made tool checks."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("radixserve", "lang", "kernels", "tests", "benchmarks", "examples")
LINKS = ("lang", "kernels")
MAX_LINES = 400

# A broad handler may end an error only at the borders: the step, the API handler, the threads of a
# program (branches, batches, calls), which hand it to whoever reads the value, and what metrics and
# traces do with a request, which must not fail it.
MAY_CATCH_ALL = {
    "radixserve/loop.py",
    "radixserve/api/faults.py",
    "radixserve/api/sse.py",
    "radixserve/metrics/guarded.py",
    "lang/branch.py",
    "lang/batch.py",
    "lang/compiled/replay.py",
    "lang/compiled/tracing.py",
    "lang/backends/threaded.py",
}


def sources() -> list[pathlib.Path]:
    """Every Python file of ours, each once: rglob does not enter the two links."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    links = tuple(ROOT / "radixserve" / name for name in LINKS)
    return sorted(p for p in found if not any(p.is_relative_to(link) for link in links))


def name_of(path: pathlib.Path) -> str:
    return path.relative_to(ROOT).as_posix()


def runtime_trees() -> list[tuple[str, ast.Module]]:
    inside = [p for p in sources() if name_of(p).startswith(("radixserve/", "lang/", "kernels/"))]
    return [(name_of(path), ast.parse(path.read_text())) for path in inside]


def raises_again(handler: ast.ExceptHandler) -> bool:
    """The last statement is a bare raise, and no other way leads out."""
    last = handler.body[-1]
    leaves = any(
        isinstance(part, ast.Return | ast.Break | ast.Continue) for part in ast.walk(handler)
    )
    return isinstance(last, ast.Raise) and last.exc is None and not leaves


def catches_all(node: ast.AST) -> bool:
    """except:, except Exception, except BaseException, unless it cleans up and raises again."""
    if not isinstance(node, ast.ExceptHandler) or raises_again(node):
        return False
    if node.type is None:
        return True
    names = {part.id for part in ast.walk(node.type) if isinstance(part, ast.Name)}
    return bool(names & {"Exception", "BaseException"})


def reads_environment(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in {"environ", "environb", "getenv", "putenv"}
    if isinstance(node, ast.ImportFrom):
        return node.module == "os" and any("env" in alias.name for alias in node.names)
    return False


def test_the_walk_finds_the_tree():
    names = [name_of(path) for path in sources()]
    assert len(names) == len(set(names))
    for known in ("radixserve/errors.py", "lang/__init__.py", "tests/test_house.py"):
        assert known in names
    assert not [name for name in names if name.startswith("radixserve/lang/")]


def test_no_source_file_is_long():
    lengths = {name_of(p): len(p.read_text().splitlines()) for p in sources()}
    assert {name: n for name, n in lengths.items() if n > MAX_LINES} == {}


def test_every_module_says_what_it_is():
    silent = []
    for path in sources():
        text = path.read_text()
        empty_package = path.name == "__init__.py" and not text.strip()
        if not empty_package and not ast.get_docstring(ast.parse(text)):
            silent.append(name_of(path))
    assert silent == []


@pytest.mark.parametrize("name", LINKS)
def test_top_level_folders_are_linked_into_the_package(name):
    link = ROOT / "radixserve" / name
    assert link.is_symlink()
    assert link.readlink() == pathlib.Path("..") / name
    assert (link / "__init__.py").is_file()


def test_broad_handlers_stand_only_at_the_borders():
    found = {name for name, tree in runtime_trees() if any(map(catches_all, ast.walk(tree)))}
    assert found - MAY_CATCH_ALL == set()


def test_only_env_reads_the_environment():
    readers = {
        name for name, tree in runtime_trees() if any(map(reads_environment, ast.walk(tree)))
    }
    assert readers == {"radixserve/env.py"}


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ("try: pass\nexcept Exception: pass", True),
        ("try: pass\nexcept (ValueError, BaseException) as e: raise e", True),
        ("try: pass\nexcept: pass", True),
        ("while x:\n try: pass\n except Exception:\n  if y: break\n  raise", True),
        ("try: pass\nexcept BaseException:\n close()\n raise", False),
        ("try: pass\nexcept ValueError: pass", False),
    ],
)
def test_a_broad_handler_is_recognised(code, seen):
    assert any(map(catches_all, ast.walk(ast.parse(code)))) is seen


@pytest.mark.parametrize(
    "code", ["import os\nos.environ['A']", "import os\nos.getenv('A')", "from os import environ"]
)
def test_reading_the_environment_is_recognised(code):
    assert any(map(reads_environment, ast.walk(ast.parse(code))))


def test_import_brings_no_torch():
    code = "import sys, radixserve; print(sorted(sys.modules.keys() & {'torch', 'transformers'}))"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[]"


def test_readme_maps_every_package():
    readme = ROOT / "README.md"
    if not readme.exists():
        pytest.skip("no README yet")
    packages = {path.parent.name for path in (ROOT / "radixserve").glob("*/__init__.py")}
    text = readme.read_text()
    assert {name for name in packages if f"{name}/" not in text} == set()
