"""The baseline that everyone has: transformers, generate(), one prompt at a time.

The weights are the ones radixserve loads (dequantised where the file is GGUF), in the same dtype,
so that both sides multiply the same numbers.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers

from radixserve.models.spec import read_spec
from radixserve.weights import source
from radixserve.weights.load import open_checkpoint


class OneAtATime:
    """model: a Hugging Face folder, or a GGUF file of the llama architecture."""

    def __init__(self, model: str, dtype: str) -> None:
        origin = source.resolve(model)
        self._dtype: torch.dtype = getattr(torch, dtype)
        if origin.kind == "folder":
            self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
                origin.path, dtype=self._dtype
            )
        else:
            self._model = self._from_gguf(origin)
        self._model.eval()
        self._model.generation_config.eos_token_id = None  # lengths are equal on every side

    def _from_gguf(self, origin: source.ModelSource) -> Any:
        spec = read_spec(origin)
        checkpoint = open_checkpoint(origin)
        config = transformers.LlamaConfig(
            vocab_size=spec.vocab_size,
            hidden_size=spec.hidden_size,
            intermediate_size=spec.intermediate_size,
            num_hidden_layers=spec.num_layers,
            num_attention_heads=spec.num_qo_heads,
            num_key_value_heads=spec.num_kv_heads,
            rms_norm_eps=spec.rms_eps,
            max_position_embeddings=spec.context_len,
            tie_word_embeddings="lm_head.weight" not in checkpoint.names(),
            rope_parameters={"rope_type": "default", "rope_theta": spec.rope.theta},
        )
        if spec.architecture != "LlamaForCausalLM" or spec.rope.kind != "default":
            raise SystemExit(f"no transformers twin for a GGUF of {spec.architecture}")
        model = transformers.LlamaForCausalLM(config).to(self._dtype)
        model.load_state_dict(dict(checkpoint.tensors()), strict=False)
        model.tie_weights()
        return model

    @torch.inference_mode()
    def generate(self, prompts: list[list[int]], tokens: int) -> list[list[int]]:
        """`tokens` greedy ids for each prompt."""
        config = transformers.GenerationConfig(
            max_new_tokens=tokens, do_sample=False, pad_token_id=0
        )
        outputs = []
        for prompt in prompts:
            out = self._model.generate(torch.tensor([prompt]), generation_config=config)
            outputs.append(out[0, len(prompt) :].tolist())
        return outputs
