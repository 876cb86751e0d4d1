"""A small tokenizer in the Hugging Face layout, trained in milliseconds, for any test."""

from __future__ import annotations

import json
import pathlib
from typing import Any, Literal

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_WORDS = Regex(r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
_CORPUS = [
    "the quick brown fox jumps over the lazy dog and the cat sat on the mat",
    "system user assistant You are a helpful assistant.",
    "Paris is the capital of France. Berlin is the capital of Germany.",
    "def answer(question): return 42  # yes, no, maybe; true or false?",
    "a list: one, two, three; (and) more [text] {here} to merge the other letters",
] * 4


def make_tokenizer(
    folder: pathlib.Path,
    *,
    vocab_size: int = 400,
    kind: Literal["bytes", "sentencepiece"] = "bytes",
    chat_template: str | list[dict[str, str]] | None = CHATML,
    add_bos: bool | None = None,
    eos_token: str | dict[str, Any] | None = "<|im_end|>",
    generation_eos: int | list[int] | None = None,
    added_tokens: tuple[str, ...] = (),
    control_tokens: tuple[str, ...] = (),
    config: dict[str, Any] | None = None,
) -> pathlib.Path:
    """Write tokenizer.json and tokenizer_config.json into `folder` and return it.

    ids 0, 1, 2 are SPECIAL_TOKENS; kind "bytes" then has the 256 bytes and merges up to
    vocab_size, kind "sentencepiece" is a BPE with byte fallback and a dummy prefix space.
    add_bos: a post-processor puts <|endoftext|> first (True), the configuration says it does not
    (False), or nothing is said (None). generation_eos: writes generation_config.json.
    added_tokens, control_tokens: ordinary added tokens and control tokens, behind the vocabulary.
    config: more keys of tokenizer_config.json.
    """
    tokenizer = _byte_level(vocab_size) if kind == "bytes" else _sentencepiece(vocab_size)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in added_tokens])
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in control_tokens])
    if add_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
        )
    about: dict[str, Any] = {"bos_token": "<|endoftext|>", "eos_token": eos_token}
    if chat_template is not None:
        about["chat_template"] = chat_template
    if add_bos is False:
        about["add_bos_token"] = False
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write(folder / "tokenizer_config.json", about | (config or {}))
    if generation_eos is not None:
        _write(folder / "generation_config.json", {"eos_token_id": generation_eos})
    return folder


def _byte_level(vocab_size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_WORDS, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    _train(tokenizer, vocab_size, pre_tokenizers.ByteLevel.alphabet())
    return tokenizer


def _sentencepiece(vocab_size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    _train(tokenizer, vocab_size - 256, [])
    spec = json.loads(tokenizer.to_str())
    vocab = spec["model"]["vocab"]
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    return Tokenizer.from_str(json.dumps(spec))


def _train(tokenizer: Tokenizer, vocab_size: int, alphabet: list[str]) -> None:
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)


def _write(path: pathlib.Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
