"""From an architecture's name to a loaded model.

Owns: which class builds which architecture. Must not know: requests, the executor.
"""

from __future__ import annotations

import re
from dataclasses import replace

import torch

from radixserve.errors import ModelLoadError
from radixserve.kernels.cpu.library import Library
from radixserve.models.decoder import Decoder
from radixserve.models.native import NativeModel
from radixserve.models.spec import Architecture, ModelSpec
from radixserve.weights.load import Checkpoint, fill, head_is_tied, open_checkpoint
from radixserve.weights.source import ModelSource

Model = Decoder | NativeModel

_MODELS: dict[Architecture, type[Decoder]] = {
    "LlamaForCausalLM": Decoder,
    "MistralForCausalLM": Decoder,
    "Qwen2ForCausalLM": Decoder,
    "Qwen3ForCausalLM": Decoder,
}


def load_model(
    source: ModelSource,
    spec: ModelSpec,
    dtype: torch.dtype,
    device: torch.device,
    native: Library | None = None,
) -> Model:
    """Build the model of `spec` on `device` and fill it from `source`.

    native: the library that shall compute, a NativeModel then; None: torch does. Memory peaks at
    the model and one tensor, natively one layer. Raises ModelLoadError naming missing or misshapen
    tensors; unused ones are logged as a warning.
    """
    checkpoint = open_checkpoint(source)
    is_tied = head_is_tied(checkpoint, spec.is_tied)
    model = _MODELS[spec.architecture](replace(spec, is_tied=is_tied), dtype=dtype, device=device)
    fill(checkpoint, model.views(), elsewhere=_read_scales(checkpoint, model))
    return model if native is None else NativeModel(model, native)


_SCALE = re.compile(r"model\.layers\.(\d+)\.self_attn\.([kv])_scale")


def _read_scales(checkpoint: Checkpoint, model: Decoder) -> frozenset[str]:
    """Take the scales of an fp8 cache, one number a layer or one a head, where there are some.

    Returns their names. Raises ModelLoadError for one that is not above 0.
    """
    found = {name: _SCALE.fullmatch(name) for name in checkpoint.names()}
    named = {name: match for name, match in found.items() if match is not None}
    for name, match in named.items():
        layer = int(match[1])
        if layer >= len(model.layers):
            continue
        scale = checkpoint.tensor(name).float().flatten()
        kept = model.layers[layer].attention.kv_scales["kv".index(match[2])]
        if len(scale) not in (1, len(kept)) or not bool((scale > 0).all() & scale.isfinite().all()):
            raise ModelLoadError(f"tensor {name} holds no scale above 0 for {len(kept)} KV heads")
        kept.copy_(scale.expand(len(kept)))
    return frozenset(named)
