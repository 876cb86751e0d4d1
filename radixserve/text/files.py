"""What a model's files say about text, read once into one value.

Owns: the Hugging Face file layout (tokenizer.json, tokenizer_config.json, generation_config.json,
chat_template.jinja). Must not know: how text is tokenised or a template rendered.
"""

from __future__ import annotations

import json
import pathlib
from dataclasses import dataclass
from typing import Any

from radixserve.errors import ModelLoadError

DEFAULT_TEMPLATE = "default"
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "eot_token")


@dataclass(frozen=True, slots=True)
class TextFiles:
    """tokenizer: the JSON of tokenizer.json. config: tokenizer_config.json, {} when there is none.

    generation_eos: end ids of generation_config.json. templates: chat templates by name; the one
    that serves unless another is asked for is DEFAULT_TEMPLATE.
    """

    tokenizer: dict[str, Any]
    config: dict[str, Any]
    generation_eos: tuple[int, ...]
    templates: dict[str, str]

    @property
    def named_tokens(self) -> dict[str, str]:
        """The texts of bos_token, eos_token and the like, whichever form they are written in."""
        texts = {name: token_content(self.config.get(name)) for name in _NAMED_TOKENS}
        return {name: text for name, text in texts.items() if text}


def read_folder(folder: pathlib.Path) -> TextFiles:
    """Read a folder in the Hugging Face layout. Raises ModelLoadError."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelLoadError(
            f"{folder}: there is no tokenizer.json; other tokenizer files (tokenizer.model, "
            "vocab.json) are not supported, convert them with transformers first"
        )
    config = _read_json(folder / "tokenizer_config.json")
    generation = _read_json(folder / "generation_config.json")
    return TextFiles(
        tokenizer=_read_json(path),
        config=config,
        generation_eos=_eos_ids(folder, generation.get("eos_token_id")),
        templates=_templates(folder, config),
    )


def token_content(value: object) -> str:
    """The text of a token written as a string or as an AddedToken object; "" for none."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _read_json(path: pathlib.Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path}: holds a {type(value).__name__}, expected an object")
    return value


def _eos_ids(folder: pathlib.Path, value: object) -> tuple[int, ...]:
    ids = value if isinstance(value, list) else [value] if value is not None else []
    if any(type(token) is not int for token in ids):
        raise ModelLoadError(
            f"{folder / 'generation_config.json'}: eos_token_id is {value!r}, expected an id "
            "or a list of ids"
        )
    return tuple(ids)


def _templates(folder: pathlib.Path, config: dict[str, Any]) -> dict[str, str]:
    """Files win over tokenizer_config.json, as in transformers."""
    found = _configured_templates(config.get("chat_template"))
    main = folder / "chat_template.jinja"
    files = {path.stem: path for path in (folder / "additional_chat_templates").glob("*.jinja")}
    if main.is_file():
        files[DEFAULT_TEMPLATE] = main
    for name, path in files.items():
        try:
            found[name] = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelLoadError(f"{path}: not readable as UTF-8 text: {error}") from error
    return found


def _configured_templates(value: object) -> dict[str, str]:
    if isinstance(value, str):
        return {DEFAULT_TEMPLATE: value}
    entries = value if isinstance(value, list) else []
    return {
        entry["name"]: entry["template"]
        for entry in entries
        if isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and isinstance(entry.get("template"), str)
    }
