"""Tiny random models in the layouts that users have, and what transformers makes of them.

SmolLM2 stands here too: as transformers holds it, with weights taken from the GGUF file by the gguf
package's own reader, so that a fault in our reader cannot hide in the reference.
"""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Sequence
from typing import Any, Literal

import gguf
import numpy as np
import torch
import transformers

from radixserve.attention.base import AttentionInputs
from radixserve.attention.cpu import CpuAttention
from radixserve.layers.context import ForwardContext
from radixserve.models.decoder import Decoder, attention_shape
from radixserve.models.registry import load_model
from radixserve.models.spec import read_spec
from radixserve.weights import source

Arch = Literal["llama", "mistral", "qwen2", "qwen3"]
ABSENT: Any = object()  # as a value for edit_config: remove the key

_CLASSES: dict[str, tuple[type[Any], type[Any]]] = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
}
_EXTRAS: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": None},
    "qwen3": {"head_dim": 24},
}


def make_model(
    folder: pathlib.Path,
    arch: Arch = "llama",
    *,
    seed: int = 0,
    tied: bool = False,
    rope: dict[str, Any] | None = None,
    vocab: int = 128,
    dtype: torch.dtype = torch.float32,
    shards: int = 1,
    **settings: Any,
) -> pathlib.Path:
    """Save a random model (hidden 64, 3 layers, 4 query and 2 KV heads) and return its folder.

    rope: rope_parameters as transformers 5 has them; theta 10000 when None. shards: how many weight
    files at least. settings: more fields of the config. Logits are of order 1: weights are far
    larger than a fresh model's, so that a wrong rotation or norm shows.
    """
    config_class, model_class = _CLASSES[arch]
    defaults: dict[str, Any] = {
        "vocab_size": vocab,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": tied,
        "rope_parameters": rope or {"rope_type": "default", "rope_theta": 10000.0},
        "bos_token_id": None,
        "eos_token_id": 0,
    }
    model = model_class(config_class(**(defaults | _EXTRAS.get(arch, {}) | settings)))
    _randomise(model, seed)
    model = model.to(dtype)
    size = sum(one.numel() * one.element_size() for one in model.parameters())
    options = {"max_shard_size": size // shards} if shards > 1 else {}
    model.save_pretrained(folder, **options)
    return folder


def _randomise(model: torch.nn.Module, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=random)
            is_norm = "norm" in name
            scale = 0.2 if parameter.ndim == 1 else 1.5 * parameter.shape[1] ** -0.5
            parameter.copy_(noise * scale + (1.0 if is_norm else 0.0))


def edit_config(folder: pathlib.Path, file: str = "config.json", **changes: Any) -> None:
    """Set keys of a JSON file in `folder`, made if missing; the value ABSENT removes one."""
    path = folder / file
    content = json.loads(path.read_text()) if path.exists() else {}
    content = {k: v for k, v in (content | changes).items() if v is not ABSENT}
    path.write_text(json.dumps(content))


def load(ref: pathlib.Path | str, dtype: torch.dtype = torch.float32) -> Decoder:
    """The model at `ref`, as the engine loads it, on the CPU."""
    origin = source.resolve(str(ref))
    return load_model(origin, read_spec(origin), dtype, torch.device("cpu"))


def logits(model: Decoder, ids: Sequence[int]) -> torch.Tensor:
    """[len(ids), vocab] float32 of one prompt in one pass."""
    page_size = 16
    pages = -(-len(ids) // page_size)
    shape = attention_shape(model.spec)
    size = (pages, page_size, shape.num_kv_heads, shape.head_dim)
    k, v = ([torch.zeros(size, dtype=model.dtype) for _ in model.layers] for _ in range(2))
    attention = CpuAttention(shape, page_size, k, v)
    attention.plan(
        AttentionInputs(
            positions=np.array([0], np.int32),
            lengths=np.array([len(ids)], np.int32),
            page_indptr=np.array([0, pages], np.int32),
            page_indices=np.arange(pages, dtype=np.int32),
        )
    )
    ctx = ForwardContext(torch.arange(len(ids)), attention)
    return model.logits(model.forward(torch.tensor(ids), ctx))


def reference(folder: pathlib.Path) -> Any:
    """The transformers model of a folder, in float32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


@torch.no_grad()
def reference_logits(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """[len(ids), vocab] float32 of one prompt in one pass of a transformers model."""
    result: torch.Tensor = model(torch.tensor([list(ids)])).logits[0]
    return result


def prompt(length: int, vocab: int = 128, seed: int = 1) -> list[int]:
    """Random ids."""
    random = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(vocab, (length,), generator=random).tolist()
    return ids


_GGUF_NAMES = (
    ("model.embed_tokens.", "token_embd."),
    ("model.norm.", "output_norm."),
    ("lm_head.", "output."),
    ("model.layers.", "blk."),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("input_layernorm", "attn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
)


def gguf_name(name: str) -> str:
    """What llama.cpp's converter calls a checkpoint tensor."""
    for ours, theirs in _GGUF_NAMES:
        name = name.replace(ours, theirs)
    return name


def permute(values: np.ndarray, heads: int) -> np.ndarray:
    """The row order in which llama.cpp's converter writes q and k of architecture llama."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def write_gguf(
    folder: pathlib.Path,
    path: pathlib.Path,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    *,
    extra: dict[str, np.ndarray] | None = None,
    without: str = "",
    **metadata: Any,
) -> Any:
    """Write the model of `folder` as GGUF, matrices in type `kind`, and say what is in it.

    extra: more tensors. without: a tensor to leave out. metadata: "rope.scaling.type"=... and the
    like, written under the architecture's prefix.
    Returns the transformers model with the weights that a right reader gets back.
    """
    model = reference(folder)
    config = model.config
    arch = {"mistral": "llama"}.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, arch)
    settings: dict[str, Any] = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "block_count": config.num_hidden_layers,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": getattr(config, "head_dim", None) or 16,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
    }
    writer.add_eos_token_id(0)
    for key, value in (settings | metadata).items():
        writer.add_key_value(f"{arch}.{key}", value, _value_type(value))
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        stored_kind = kind if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        part = name.split(".")[-2]
        rows = permute(values, heads[part]) if arch == "llama" and part in heads else values
        if gguf_name(name) != without:
            stored = gguf.quants.quantize(rows, stored_kind)
            writer.add_tensor(gguf_name(name), stored, raw_dtype=stored_kind)
        known = gguf.quants.dequantize(gguf.quants.quantize(values, stored_kind), stored_kind)
        parameter.data = torch.tensor(known)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _value_type(value: Any) -> gguf.GGUFValueType:
    kinds = {str: gguf.GGUFValueType.STRING, int: gguf.GGUFValueType.UINT32}
    return kinds.get(type(value), gguf.GGUFValueType.FLOAT32)


@functools.cache
def smollm2_reference() -> Any:
    """SmolLM2 as a transformers model in float32, weights dequantised from the GGUF file."""
    reader = gguf.GGUFReader(source.resolve("smollm2").path)
    config = transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    stored = {tensor.name: tensor for tensor in reader.tensors}
    model = transformers.LlamaForCausalLM(config)
    state = {}
    for name, _ in model.named_parameters():
        tensor = stored[gguf_name(name)]
        values = np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float32)
        if heads := {"q_proj": 9, "k_proj": 3}.get(name.split(".")[-2]):
            pairs = values.reshape(heads, 32, 2, 576)
            values = np.concatenate((pairs[:, :, 0], pairs[:, :, 1]), axis=1).reshape(-1, 576)
        state[name] = torch.from_numpy(values)
    # Tied: the head has no parameter of its own.
    model.load_state_dict(state | {"lm_head.weight": state["model.embed_tokens.weight"]})
    return model.eval()


def smollm2_folder(path: pathlib.Path) -> pathlib.Path:
    """Save SmolLM2 as a Hugging Face folder (config and float32 weights); returns the folder."""
    smollm2_reference().save_pretrained(path)
    return path
