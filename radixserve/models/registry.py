"""From an architecture's name to a loaded model.

Owns: which class builds which architecture. Must not know: requests, the executor.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from radixserve.kernels.cpu.library import Library
from radixserve.models.decoder import Decoder
from radixserve.models.native import NativeModel
from radixserve.models.spec import Architecture, ModelSpec
from radixserve.weights.load import fill, head_is_tied, open_checkpoint
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
    fill(checkpoint, model.views())
    return model if native is None else NativeModel(model, native)
