"""The structs of the C ABI, field by field as src/types.h, plan.h, decoder.h and sample.h say.

Owns: their layout. Must not know: tensors.
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p

FLOAT32, BFLOAT16 = 0, 1
STAGES = ("embedding", "norm", "qkv", "rotary", "attention", "output", "gate_up", "down")
"""Stages of a decoder's step, decoder.h."""


class LinearArgs(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("x", "weight", "bias", "residual", "y")),
        *((name, c_int64) for name in ("m", "inputs", "outs")),
        *((name, c_int32) for name in ("x_type", "weight_type", "y_type", "gated")),
    )


class NormArgs(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("x", "weight", "normed")),
        ("size", c_int64),
        ("eps", c_float),
        ("dtype", c_int32),
    )


class RotaryArgs(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("heads", "cos", "sin", "q_norm", "k_norm", "slots")),
        *((name, c_void_p) for name in ("k_cache", "v_cache")),
        *((name, c_int64) for name in ("stride", "num_qo_heads", "num_kv_heads", "head_dim")),
        ("eps", c_float),
        ("dtype", c_int32),
    )


class ShapeArgs(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("num_qo_heads", "num_kv_heads", "head_dim", "page_size")),
        ("scale", c_float),
        ("dtype", c_int32),
    )


class RowsArgs(ctypes.Structure):
    _fields_ = (
        ("rows", c_int64),
        ("groups", c_int64),
        *((name, c_void_p) for name in ("positions", "lengths", "page_indptr", "page_indices")),
        *((name, c_void_p) for name in ("group_indptr", "group_rows", "group_begin", "group_end")),
    )


class LayerArgs(ctypes.Structure):
    _fields_ = tuple(
        (name, c_void_p)
        for name in (
            "input_norm", "qkv", "qkv_bias", "q_norm", "k_norm", "output", "output_bias",
            "post_norm", "gate_up", "gate_up_bias", "down", "down_bias",
        )
    )  # fmt: skip


class ModelArgs(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("num_layers", "hidden_size", "intermediate_size")),
        ("eps", c_float),
        ("dtype", c_int32),
        *((name, c_void_p) for name in ("inv_freq", "embedding", "norm", "layers", "times")),
    )


class SamplingArgs(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("logits", "mask_bits", "mask_bytes", "temperature")),
        *((name, c_void_p) for name in ("top_k", "top_p", "min_p", "uniform", "is_greedy", "ids")),
        *((name, c_int64) for name in ("rows", "stride", "valid", "mask_stride")),
    )
