"""Filling a decoder's parameters from a checkpoint.

Owns: that every parameter is filled exactly once and every tensor is used or named, and whether the
head is tied when the model's settings leave it open. Must not know: the decoder's layers (it is
given views by name), what the settings mean.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Protocol

import numpy as np
import torch

from radixserve.errors import ModelLoadError
from radixserve.log import logger
from radixserve.weights.gguf import GgufFile
from radixserve.weights.safetensors import SafetensorsFolder
from radixserve.weights.source import ModelSource

_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"
_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
# Derived from the settings and rebuilt there; old checkpoints and GGUF files carry them.
_DERIVED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq|rope_freqs\.weight")


class Checkpoint(Protocol):
    """Tensors under Hugging Face names, read one at a time."""

    def names(self) -> Collection[str]: ...

    def tensor(self, name: str) -> torch.Tensor: ...

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]: ...


class GgufCheckpoint:
    """A GGUF file as a Checkpoint; every tensor comes out as float32."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self._own_names = file.names()

    def names(self) -> Collection[str]:
        return self._own_names.keys()

    def tensor(self, name: str) -> torch.Tensor:
        # torch refuses memory it may not write, which a float32 tensor of the mapped file is.
        values = np.require(self._file.dequantised(self._own_names[name]), requirements="W")
        return torch.from_numpy(values)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name in self._own_names:
            yield name, self.tensor(name)


def open_checkpoint(source: ModelSource) -> Checkpoint:
    """The weights of `source`. Raises ModelLoadError when they are not there or broken."""
    if source.kind == "gguf":
        return GgufCheckpoint(GgufFile(source.path))
    return SafetensorsFolder(source.path)


def head_is_tied(checkpoint: Checkpoint, declared: bool | None) -> bool:
    """Whether the output head is the embedding.

    declared: what the settings say; None leaves it to the weights: tied when they hold no head. A
    head that is there and differs from the embedding is used whatever was declared.
    """
    if _HEAD not in checkpoint.names():
        return declared is not False
    if not declared:
        return False
    if torch.equal(checkpoint.tensor(_HEAD), checkpoint.tensor(_EMBEDDING)):
        return True
    logger.warning("the settings tie the head, but %s differs from %s: not tied", _HEAD, _EMBEDDING)
    return False


def fill(
    checkpoint: Checkpoint, views: dict[str, torch.Tensor], elsewhere: Collection[str] = ()
) -> None:
    """Copy every tensor of `checkpoint` into the view of its name, casting to the view's dtype.

    Tensors without a view are named in a warning, but for those that are read elsewhere (and a
    copy of a tied head). Raises
    ModelLoadError naming every view that got no tensor, or the tensor whose shape or dtype does
    not fit.
    """
    names = checkpoint.names()
    if missing := [name for name in views if name not in names]:
        raise ModelLoadError(f"tensors are missing: {', '.join(missing)}")
    unused = []
    for name, tensor in checkpoint.tensors():
        if name in views:
            _copy(name, tensor, views[name])
        elif name != _HEAD and name not in elsewhere and not _DERIVED.fullmatch(name):
            unused.append(name)
    if unused:
        logger.warning("tensors that the model has no use for: %s", ", ".join(unused))


def _copy(name: str, tensor: torch.Tensor, view: torch.Tensor) -> None:
    if tensor.shape != view.shape:
        raise ModelLoadError(
            f"tensor {name} has shape {list(tensor.shape)}, the settings ask for {list(view.shape)}"
        )
    if tensor.dtype not in _FLOATS:
        raise ModelLoadError(f"tensor {name} has dtype {tensor.dtype}, which is not supported")
    view.copy_(tensor)
