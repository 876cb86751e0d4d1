"""Reading the safetensors files of a model folder.

Owns: which file holds which tensor (the index decides where there is one). Must not know: the
decoder, what a tensor is for.
"""

from __future__ import annotations

import json
import pathlib
from collections import defaultdict
from collections.abc import Iterator

import torch
from safetensors import SafetensorError, safe_open

from radixserve.errors import ModelLoadError
from radixserve.log import logger

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


class SafetensorsFolder:
    """The tensors of one folder, by name.

    With an index, a tensor is read from the file that the index names and from no other; files and
    tensors beside it are named in a warning and ignored. Without one, model.safetensors is read.
    Raises ModelLoadError when neither is there, or a file is missing, broken or lacks its tensors.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.path = folder
        self._names_by_file = self._assign()
        self._check_files()

    def names(self) -> frozenset[str]:
        return frozenset(name for names in self._names_by_file.values() for name in names)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor in turn; only the one in hand is in memory."""
        for file, names in self._names_by_file.items():
            with self._open(file) as content:
                for name in names:
                    yield name, content.get_tensor(name)

    def tensor(self, name: str) -> torch.Tensor:
        file = next(file for file, names in self._names_by_file.items() if name in names)
        with self._open(file) as content:
            tensor: torch.Tensor = content.get_tensor(name)
        return tensor

    def _assign(self) -> dict[str, list[str]]:
        index_file = self.path / _INDEX
        if index_file.is_file():
            return self._read_index(index_file)
        if (self.path / _SINGLE).is_file():
            with self._open(_SINGLE) as content:
                return {_SINGLE: list(content.keys())}
        found = sorted(file.name for file in self.path.iterdir())
        raise ModelLoadError(
            f"{self.path}: neither {_INDEX} nor {_SINGLE} is there, only {', '.join(found)}"
        )

    def _read_index(self, index_file: pathlib.Path) -> dict[str, list[str]]:
        try:
            weight_map = json.loads(index_file.read_text(encoding="utf-8"))["weight_map"].items()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelLoadError(f"{index_file}: not a weight index: {error!r}") from error
        names_by_file: dict[str, list[str]] = defaultdict(list)
        for name, file in weight_map:
            names_by_file[file].append(name)
        return dict(names_by_file)

    def _check_files(self) -> None:
        for file, names in self._names_by_file.items():
            with self._open(file) as content:
                held = set(content.keys())
            if absent := sorted(set(names) - held):
                raise ModelLoadError(f"{self.path / file}: lacks {', '.join(absent)}")
            if strays := sorted(held - set(names)):
                logger.warning("%s: ignored, not in the index: %s", file, ", ".join(strays))
        present = {file.name for file in self.path.glob("*.safetensors")}
        if strays := sorted(present - set(self._names_by_file)):
            logger.warning("%s: ignored files: %s", self.path, ", ".join(strays))

    def _open(self, file: str) -> safe_open:
        try:
            return safe_open(self.path / file, framework="pt")
        except (OSError, SafetensorError) as error:
            raise ModelLoadError(f"{self.path / file}: cannot be read: {error}") from error
