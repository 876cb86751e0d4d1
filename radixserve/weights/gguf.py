"""Reading GGUF files: metadata, tensor list, dequantised tensors under Hugging Face names.

Owns: the file format, the names of its tensors and the row order llama.cpp gives q and k. Must not
know: torch, the decoder, what the metadata keys mean.
"""

from __future__ import annotations

import math
import mmap
import pathlib
import re
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from radixserve.errors import ModelLoadError
from radixserve.ints import ceil_div

_MAGIC = 0x46554747  # "GGUF", little-endian
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "?", 10: "Q", 11: "q"}
_SCALARS[12] = "d"

_TOP_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """shape: outermost dimension first, as numpy and torch count. offset: bytes from file start."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int


class GgufFile:
    """One GGUF file, mapped into memory.

    metadata: key -> bool, int, float, str, or a list of them. tensors: by the file's own names.
    Raises ModelLoadError when the file is no whole GGUF file of version 2 or 3.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.metadata, tensors = _parse(self._map)
        except (OSError, ValueError, KeyError, struct.error) as error:
            raise ModelLoadError(f"{path}: not a readable GGUF file: {error}") from error
        if int(self.metadata.get("split.count", 1)) > 1:
            raise ModelLoadError(f"{path}: split GGUF files are not supported; merge them first")
        self.tensors = {tensor.name: tensor for tensor in tensors}

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    def names(self) -> dict[str, str]:
        """Checkpoint name -> name in the file, of every tensor; unknown ones keep their name."""
        return {_checkpoint_name(name): name for name in self.tensors}

    def dequantised(self, name: str) -> npt.NDArray[np.float32]:
        """Tensor `name` (in the file's naming) as float32, rows in Hugging Face order.

        Raises ModelLoadError when its type cannot be dequantised or its bytes are cut off.
        """
        tensor = self.tensors[name]
        values = self._values(tensor)
        heads = self._permuted_heads(name)
        return unpermute(values, heads) if heads else values

    def _values(self, tensor: GgufTensor) -> npt.NDArray[np.float32]:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

        try:
            kind = GGMLQuantizationType(tensor.type_id)
            block, block_bytes = GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError):
            raise self._unknown_type(tensor, str(tensor.type_id)) from None
        count = math.prod(tensor.shape) // block * block_bytes
        if tensor.offset + count > len(self._map):
            raise ModelLoadError(f"{self.path}: tensor {tensor.name} is cut off")
        raw = np.frombuffer(self._map, np.uint8, count, tensor.offset)
        if kind == GGMLQuantizationType.F64:
            return raw.view(np.float64).reshape(tensor.shape).astype(np.float32)
        rows = raw.reshape(*tensor.shape[:-1], tensor.shape[-1] // block * block_bytes)
        try:
            values: npt.NDArray[np.float32] = quants.dequantize(rows, kind)
        except NotImplementedError:
            raise self._unknown_type(tensor, kind.name) from None
        return values.reshape(tensor.shape)

    def _unknown_type(self, tensor: GgufTensor, kind: str) -> ModelLoadError:
        return ModelLoadError(f"{self.path}: cannot dequantise tensor {tensor.name} of type {kind}")

    def _permuted_heads(self, name: str) -> int:
        part = re.fullmatch(r"blk\.\d+\.attn_([qk])\.(weight|bias)", name)
        if self.architecture != "llama" or part is None:
            return 0
        heads = int(self.metadata["llama.attention.head_count"])
        if part[1] == "q":
            return heads
        return int(self.metadata.get("llama.attention.head_count_kv", heads))


def unpermute(values: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Undo the row order that llama.cpp gives q and k of its architecture llama.

    values: [heads * head_dim, ...]. There, rows of a head pair up neighbours for rotary; here row i
    pairs with row i + head_dim / 2. With one head of 4: rows (0, 1, 2, 3) become (0, 2, 1, 3).
    """
    pairs = values.reshape(heads, -1, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def _checkpoint_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if layer := re.fullmatch(r"blk\.(\d+)\.(\w+)", stem):
        known = _LAYER_NAMES.get(layer[2])
        return f"model.layers.{layer[1]}.{known}.{kind}" if known else name
    return f"{_TOP_NAMES[stem]}.{kind}" if stem in _TOP_NAMES else name


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.at = 0

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self._data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def string(self) -> str:
        length = self.scalar("Q")
        raw = self._data[self.at : self.at + length]
        if len(raw) != length:
            raise ValueError("a string is cut off")
        self.at += length
        return raw.decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.scalar(_SCALARS[kind])
        item, count = self.scalar("I"), self.scalar("Q")
        if item in (_STRING, _ARRAY):
            return [self.value(item) for _ in range(count)]
        code = f"<{count}{_SCALARS[item]}"
        values = struct.unpack_from(code, self._data, self.at)
        self.at += struct.calcsize(code)
        return list(values)


def _parse(data: mmap.mmap) -> tuple[dict[str, Any], list[GgufTensor]]:
    reader = _Reader(data)
    magic, version = reader.scalar("I"), reader.scalar("I")
    if magic != _MAGIC or version not in (2, 3):
        raise ValueError(f"magic {magic:#x}, version {version} (expected {_MAGIC:#x}, 2 or 3)")
    tensor_count, key_count = reader.scalar("Q"), reader.scalar("Q")
    metadata: dict[str, Any] = {}
    for _ in range(key_count):
        key = reader.string()
        metadata[key] = reader.value(reader.scalar("I"))
    entries = []
    for _ in range(tensor_count):
        name = reader.string()
        innermost_first = [reader.scalar("Q") for _ in range(reader.scalar("I"))]
        entries.append(
            (name, tuple(reversed(innermost_first)), reader.scalar("I"), reader.scalar("Q"))
        )
    alignment = int(metadata.get("general.alignment", 32))
    start = ceil_div(reader.at, alignment) * alignment
    return metadata, [GgufTensor(n, shape, kind, start + at) for n, shape, kind, at in entries]
