"""A tokenizer from the metadata of a GGUF file, kept as files in the Hugging Face layout.

Owns: which tokenizers of GGUF files are understood and how llama.cpp's names map to `tokenizers`.
Must not know: what is done with the tokenizer. Byte-level BPE only; the pre-tokenizer is the one
that tokenizer.ggml.pre names, and a name whose rules are not written here is refused, because a
near miss gives other ids than the model was trained on.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import shutil
import tempfile
from typing import Any

from radixserve import env
from radixserve.errors import ModelLoadError
from radixserve.log import logger
from radixserve.text.files import DEFAULT_TEMPLATE
from radixserve.text.vocabulary import LLAMA3_WORDS, QWEN2_WORDS
from radixserve.weights.gguf import GgufFile

_FORMAT = 1  # part of the cache key: raise it when what convert() writes changes
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _split(pattern: str) -> dict[str, Any]:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


def _sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(parts)}


_GPT2 = _byte_level(use_regex=True)
_SINGLE_DIGITS = _sequence({"type": "Digits", "individual_digits": True}, _GPT2)
_LLAMA3 = _sequence(_split(LLAMA3_WORDS), _byte_level(use_regex=False))
_QWEN2 = _sequence(_split(QWEN2_WORDS), _byte_level(use_regex=False))

# tokenizer.ggml.pre -> (pre-tokenizer, normalizer, whole words before merges, BOS unless told)
_KINDS: dict[str, tuple[dict[str, Any], dict[str, Any] | None, bool, bool]] = {
    "gpt-2": (_GPT2, None, False, False),
    "smollm": (_SINGLE_DIGITS, None, False, False),
    "starcoder": (_SINGLE_DIGITS, None, False, False),
    "refact": (_SINGLE_DIGITS, None, False, False),
    "llama-bpe": (_LLAMA3, None, True, True),
    "llama3": (_LLAMA3, None, True, True),
    "llama-v3": (_LLAMA3, None, True, True),
    "qwen2": (_QWEN2, {"type": "NFC"}, False, False),
}


def convert(path: pathlib.Path) -> pathlib.Path:
    """Folder with tokenizer.json, tokenizer_config.json and generation_config.json for the GGUF
    file at `path`; made once for each state of the file (path, size, time of change).

    Several processes may convert at once: each writes a folder of its own and renames it.
    Raises ModelLoadError for tokenizers that are not understood.
    """
    folder = env.cache_dir() / "tokenizers" / f"{path.stem}-{_identity(path)}"
    if folder.is_dir():
        return folder
    files = _files(path, GgufFile(path).metadata)
    try:
        _write_once(folder, files)
    except OSError as error:
        raise ModelLoadError(f"cannot keep the tokenizer of {path}: {error}") from error
    logger.info("tokenizer of %s kept at %s", path.name, folder)
    return folder


def _identity(path: pathlib.Path) -> str:
    status = path.stat()
    key = f"{_FORMAT}\0{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}"
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def _write_once(folder: pathlib.Path, files: dict[str, dict[str, Any]]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = tempfile.mkdtemp(dir=folder.parent)
    try:
        for name, value in files.items():
            text = json.dumps(value, ensure_ascii=False)
            (pathlib.Path(scratch) / name).write_text(text, encoding="utf-8")
        try:
            os.rename(scratch, folder)
        except OSError:
            if not folder.is_dir():  # else another process was first, with the same content
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _files(path: pathlib.Path, metadata: dict[str, Any]) -> dict[str, dict[str, Any]]:
    model = metadata.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise ModelLoadError(
            f"{path}: tokenizer.ggml.model {model!r} is not supported, only 'gpt2' "
            "(byte-level BPE) is"
        )
    pre = metadata.get("tokenizer.ggml.pre")
    if pre not in _KINDS:
        raise ModelLoadError(
            f"{path}: tokenizer.ggml.pre {pre!r} is not supported; known are {', '.join(_KINDS)}"
        )
    return {
        "tokenizer.json": _tokenizer(path, metadata, pre),
        "tokenizer_config.json": _config(metadata, pre),
        "generation_config.json": {"eos_token_id": _end_ids(metadata)},
    }


def _tokenizer(path: pathlib.Path, metadata: dict[str, Any], pre: str) -> dict[str, Any]:
    tokens: list[str] = metadata.get("tokenizer.ggml.tokens") or []
    types: list[int] = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    merges = [merge.split(" ") for merge in metadata.get("tokenizer.ggml.merges") or []]
    if not tokens or len(types) != len(tokens):
        raise ModelLoadError(f"{path}: {len(tokens)} tokens and {len(types)} token types")
    if any(len(pair) != 2 for pair in merges):
        raise ModelLoadError(f"{path}: tokenizer.ggml.merges holds an entry that is no pair")
    pre_tokenizer, normalizer, whole_words, _ = _KINDS[pre]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(tokens, types),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": _byte_level(use_regex=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": whole_words,
            "vocab": {text: i for i, text in enumerate(tokens) if types[i] != _UNUSED},
            "merges": merges,
        },
    }


def _added_tokens(tokens: list[str], types: list[int]) -> list[dict[str, Any]]:
    return [
        {
            "id": i,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": types[i] == _CONTROL,
        }
        for i, text in enumerate(tokens)
        if types[i] in (_CONTROL, _USER_DEFINED)
    ]


def _config(metadata: dict[str, Any], pre: str) -> dict[str, Any]:
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    config: dict[str, Any] = {
        "add_bos_token": metadata.get("tokenizer.ggml.add_bos_token", _KINDS[pre][3])
    }
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    for name, key in names.items():
        token = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if token is not None and token < len(tokens):
            config[key] = tokens[token]
    templates = {
        name: metadata[f"tokenizer.chat_template.{name}"]
        for name in metadata.get("tokenizer.chat_templates") or []
        if f"tokenizer.chat_template.{name}" in metadata
    }
    if "tokenizer.chat_template" in metadata:
        templates[DEFAULT_TEMPLATE] = metadata["tokenizer.chat_template"]
    config["chat_template"] = [
        {"name": name, "template": template} for name, template in templates.items()
    ]
    return config


def _end_ids(metadata: dict[str, Any]) -> list[int]:
    keys = [f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom")]
    return [metadata[key] for key in keys if key in metadata]
