"""ModelSpec: the facts of a model, read from a Hugging Face folder or from GGUF metadata.

Owns: which architectures and settings the decoder can honour; everything else is refused here by
name, before a weight is read. Must not know: torch, weights, tokenizers.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from radixserve.errors import ModelLoadError
from radixserve.weights.gguf import GgufFile
from radixserve.weights.source import ModelSource

Architecture = Literal[
    "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary positions: pair i of a head turns by position * theta ** (-2i / head_dim), scaled.

    linear: all frequencies divided by factor. llama3: those with wavelengths above
    original_context / low_freq_factor divided by factor, those below original_context /
    high_freq_factor kept, a blend between. divisors: [head_dim / 2] or empty, one per frequency
    (GGUF keeps llama3 scaling in this form).
    """

    theta: float = 10000.0
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 0
    divisors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """vocab_size: rows of the embedding, which may exceed the tokenizer's ids.

    is_tied: the output head is the embedding; None when the source does not say, and then the
    presence of a head among the weights decides. has_attention_bias: on q, k and v. windows,
    softcap, has_sinks: as in attention.base.AttentionShape; no family read here has the last two.
    """

    architecture: Architecture
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_qo_heads: int
    num_kv_heads: int
    head_dim: int
    rms_eps: float
    context_len: int
    rope: RopeSpec
    is_tied: bool | None = None
    has_attention_bias: bool = False
    has_output_bias: bool = False
    has_mlp_bias: bool = False
    has_qk_norm: bool = False
    activation: Literal["silu", "gelu_tanh"] = "silu"
    windows: tuple[int, ...] = ()
    softcap: float = 0.0
    has_sinks: bool = False
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None

    def __post_init__(self) -> None:
        if self.num_qo_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.num_qo_heads} query heads cannot share {self.num_kv_heads} KV heads evenly"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd; rotary positions need pairs")


@dataclass(frozen=True, slots=True)
class _Family:
    """What transformers assumes of a family when config.json leaves a key out."""

    context_len: int
    num_kv_heads: int | None
    head_dim: int | None = None
    has_attention_bias: bool | None = None  # None: the key attention_bias decides
    has_output_bias: bool | None = None
    has_qk_norm: bool = False
    takes_mlp_bias: bool = False
    window_key: Literal["", "sliding_window", "use_sliding_window"] = ""  # what switches windows on


_FAMILIES: dict[Architecture, _Family] = {
    "LlamaForCausalLM": _Family(2048, None, takes_mlp_bias=True),
    "MistralForCausalLM": _Family(
        131072,
        8,
        has_attention_bias=False,
        has_output_bias=False,
        window_key="sliding_window",
    ),
    "Qwen2ForCausalLM": _Family(
        32768,
        32,
        has_attention_bias=True,
        has_output_bias=False,
        window_key="use_sliding_window",
    ),
    "Qwen3ForCausalLM": _Family(
        32768, 32, head_dim=128, has_qk_norm=True, window_key="use_sliding_window"
    ),
}
_GGUF_ARCHITECTURES: dict[str, Architecture] = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def read_spec(source: ModelSource) -> ModelSpec:
    """The facts of the model at `source`.

    Raises ModelLoadError naming the file and the key when a setting is missing, wrong, or one that
    the decoder cannot honour (architecture, rope type, layer types, activation, quantisation).
    """
    try:
        if source.kind == "gguf":
            return _from_gguf(GgufFile(source.path))
        return _from_folder(source.path)
    except KeyError as error:
        raise ModelLoadError(f"{source.path}: the key {error} is missing") from error
    except (TypeError, ValueError) as error:
        raise ModelLoadError(f"{source.path}: {error}") from error


def _from_folder(folder: pathlib.Path) -> ModelSpec:
    config = _read_json(folder / "config.json")
    generation_file = folder / "generation_config.json"
    generation = _read_json(generation_file) if generation_file.is_file() else {}
    architecture = _architecture(config)
    family = _FAMILIES[architecture]
    context_len = int(config.get("max_position_embeddings") or family.context_len)
    _refuse_unsupported(config)
    layers = int(config["num_hidden_layers"])
    heads = int(config["num_attention_heads"])
    hidden_size = int(config["hidden_size"])
    bias = bool(config.get("attention_bias", False))
    bos_ids = _ids(config.get("bos_token_id"))
    return ModelSpec(
        architecture=architecture,
        vocab_size=int(config["vocab_size"]),
        hidden_size=hidden_size,
        intermediate_size=int(config["intermediate_size"]),
        num_layers=layers,
        num_qo_heads=heads,
        num_kv_heads=int(config.get("num_key_value_heads", family.num_kv_heads) or heads),
        head_dim=int(config.get("head_dim") or family.head_dim or hidden_size // heads),
        rms_eps=float(config.get("rms_norm_eps", 1e-6)),
        context_len=context_len,
        rope=_rope(config, context_len),
        is_tied=config.get("tie_word_embeddings"),
        has_attention_bias=bias if family.has_attention_bias is None else family.has_attention_bias,
        has_output_bias=bias if family.has_output_bias is None else family.has_output_bias,
        has_mlp_bias=family.takes_mlp_bias and bool(config.get("mlp_bias", False)),
        has_qk_norm=family.has_qk_norm,
        activation=_activation(config),
        windows=_windows(config, family, layers, context_len),
        eos_ids=_union(config.get("eos_token_id"), generation.get("eos_token_id")),
        bos_id=bos_ids[0] if bos_ids else None,
    )


def _architecture(config: dict[str, Any]) -> Architecture:
    named = config.get("architectures") or [None]
    for architecture in _FAMILIES:
        if architecture == named[0]:
            return architecture
    raise ValueError(f"architecture {named[0]} is not supported ({', '.join(_FAMILIES)} are)")


def _refuse_unsupported(config: dict[str, Any]) -> None:
    if method := config.get("quantization_config"):
        name = method.get("quant_method", "unnamed")
        raise ValueError(f"quantization_config ({name}) is not supported")


def _activation(config: dict[str, Any]) -> Literal["silu", "gelu_tanh"]:
    match config.get("hidden_act", "silu"):
        case "silu" | "swish":
            return "silu"
        case "gelu_pytorch_tanh" | "gelu_new":
            return "gelu_tanh"
        case other:
            raise ValueError(f"hidden_act {other!r} is not supported (silu, gelu_pytorch_tanh)")


_WINDOW = 4096  # where the key is absent
_FULL_LAYERS = 28
_LAYER_TYPES = {"full_attention": False, "sliding_attention": True}


def _windows(
    config: dict[str, Any], family: _Family, layers: int, context_len: int
) -> tuple[int, ...]:
    """Of each layer, as transformers reads the keys; empty where none is below context_len."""
    types = list(config.get("layer_types") or ())
    if others := set(types) - set(_LAYER_TYPES):
        raise ValueError(f"layer_types {', '.join(sorted(others))} are not supported")
    if types and len(types) != layers:
        raise ValueError(f"layer_types of {len(types)} layers, num_hidden_layers is {layers}")
    is_sliding = [_LAYER_TYPES[kind] for kind in types]
    window = config.get("sliding_window", _WINDOW)
    if family.window_key == "sliding_window":
        if any(is_sliding) and not all(is_sliding):
            raise ValueError("layer_types sliding_attention beside full_attention in this family")
        is_sliding = [True] * layers
    elif family.window_key and config.get("use_sliding_window"):
        if not types:
            first = int(config.get("max_window_layers", _FULL_LAYERS))
            is_sliding = [layer >= first for layer in range(layers)]
    elif any(is_sliding) or config.get("use_sliding_window"):
        named = "layer_types sliding_attention" if any(is_sliding) else "use_sliding_window true"
        raise ValueError(f"{named} is not supported in this family without a window of its own")
    return _below(window, is_sliding, context_len)


def _below(window: Any, is_sliding: Sequence[bool], context_len: int) -> tuple[int, ...]:
    if window is None or not any(is_sliding):
        return ()
    if int(window) < 1:
        raise ValueError(f"sliding_window {window} must be 1 or more")
    if int(window) >= context_len:
        return ()
    return tuple(int(window) if sliding else 0 for sliding in is_sliding)


def _rope(config: dict[str, Any], context_len: int) -> RopeSpec:
    # transformers 5 keeps everything in rope_parameters, 4 had theta at top level and the rest in
    # rope_scaling; both may stand in one file, and then the scaling dictionary's own values win.
    settings = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if nested := [key for key, value in settings.items() if isinstance(value, dict)]:
        raise ValueError(f"rotary settings for each layer type ({nested[0]}) are not supported")
    theta = settings.get("rope_theta", config.get("rope_theta"))
    kind = settings.get("rope_type") or settings.get("type") or "default"
    partial = settings.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise ValueError(f"partial_rotary_factor {partial} is not supported (only 1.0)")
    original = config.get("original_max_position_embeddings") or settings.get(
        "original_max_position_embeddings"
    )
    theta = 10000.0 if theta is None else float(theta)
    match kind:
        case "default":
            return RopeSpec(theta=theta)
        case "linear":
            return RopeSpec(theta=theta, kind="linear", factor=float(settings["factor"]))
        case "llama3":
            return RopeSpec(
                theta=theta,
                kind="llama3",
                factor=float(settings["factor"]),
                low_freq_factor=float(settings["low_freq_factor"]),
                high_freq_factor=float(settings["high_freq_factor"]),
                original_context=int(original or context_len),
            )
        case _:
            raise ValueError(f"rope type {kind!r} is not supported (default, linear, llama3)")


def _from_gguf(file: GgufFile) -> ModelSpec:
    prefix = file.architecture
    if prefix not in _GGUF_ARCHITECTURES:
        supported = ", ".join(_GGUF_ARCHITECTURES)
        raise ValueError(f"GGUF architecture {prefix!r} is not supported ({supported} are)")
    data = {
        key.removeprefix(f"{prefix}."): value
        for key, value in file.metadata.items()
        if key.startswith(f"{prefix}.")
    }
    heads = int(data["attention.head_count"])
    hidden_size = int(data["embedding_length"])
    head_dim = int(data.get("attention.key_length", hidden_size // heads))
    context_len, layers = int(data["context_length"]), int(data["block_count"])
    _refuse_unsupported_gguf(data, head_dim)
    window = data.get("attention.sliding_window") or None
    if window and prefix != "llama" and window < context_len:
        raise ValueError(f"attention.sliding_window {window}: which layers have it is not known")
    token_keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    ends = [file.metadata.get(f"tokenizer.ggml.{key}") for key in token_keys]
    return ModelSpec(
        architecture=_GGUF_ARCHITECTURES[prefix],
        vocab_size=file.tensors["token_embd.weight"].shape[0],
        hidden_size=hidden_size,
        intermediate_size=int(data["feed_forward_length"]),
        num_layers=layers,
        num_qo_heads=heads,
        num_kv_heads=int(data.get("attention.head_count_kv", heads)),
        head_dim=head_dim,
        rms_eps=float(data["attention.layer_norm_rms_epsilon"]),
        context_len=context_len,
        rope=_gguf_rope(file, data, head_dim),
        is_tied="output.weight" not in file.tensors,
        has_attention_bias="blk.0.attn_q.bias" in file.tensors,
        has_output_bias="blk.0.attn_output.bias" in file.tensors,
        has_mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        has_qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
        windows=_below(window, [True] * layers, context_len),
        eos_ids=_union(*ends),
        bos_id=file.metadata.get("tokenizer.ggml.bos_token_id"),
    )


def _refuse_unsupported_gguf(data: dict[str, Any], head_dim: int) -> None:
    if experts := data.get("expert_count"):
        raise ValueError(f"expert_count {experts} is not supported (mixture of experts)")
    rotated = data.get("rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise ValueError(f"rope.dimension_count {rotated} is not supported (not {head_dim})")
    if data.get("attention.value_length", head_dim) != head_dim:
        raise ValueError("attention.value_length other than key_length is not supported")


def _gguf_rope(file: GgufFile, data: dict[str, Any], head_dim: int) -> RopeSpec:
    theta = float(data.get("rope.freq_base", 10000.0))
    factor = float(data.get("rope.scaling.factor") or data.get("rope.scale_linear") or 1.0)
    kind = data.get("rope.scaling.type") or ("linear" if factor != 1.0 else "none")
    if kind not in ("none", "linear"):
        raise ValueError(f"rope.scaling.type {kind!r} is not supported (none, linear)")
    divisors: tuple[float, ...] = ()
    if "rope_freqs.weight" in file.tensors:
        divisors = tuple(file.dequantised("rope_freqs.weight").tolist())
        if len(divisors) != head_dim // 2:
            raise ValueError(f"rope_freqs.weight: {len(divisors)} values, not {head_dim // 2}")
    if kind == "linear":
        return RopeSpec(theta=theta, kind="linear", factor=factor, divisors=divisors)
    return RopeSpec(theta=theta, divisors=divisors)


def _union(*values: Any) -> tuple[int, ...]:
    return tuple(sorted({one for value in values for one in _ids(value)}))


def _ids(value: Any) -> list[int]:
    if value is None:
        return []
    return [int(one) for one in value] if isinstance(value, list) else [int(value)]


def _read_json(path: pathlib.Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelLoadError(f"{path}: must hold a JSON object")
    return content
