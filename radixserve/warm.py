"""Prompts that are computed at the start and kept in the cache first.

Owns: the file of warm prompts, and their passage through the engine. Must not know: the gateway
beyond its verb, how the cache keeps anything.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from radixserve.chunks import Chunk, Request, of_key
from radixserve.errors import ConfigError, InvalidRequest, RequestError
from radixserve.log import logger
from radixserve.metrics.trail import Origin
from radixserve.text.renderer import Renderer
from radixserve.wire.params import SamplingParams

COMPUTE_ONLY = SamplingParams(max_new_tokens=0, temperature=0.0)

Submit = Callable[[Request], AsyncGenerator[Chunk, None]]


@dataclass(frozen=True, slots=True)
class WarmPrompt:
    """ids: int32 bytes. namespace: whose requests find it, as in a key file; "" for keys without
    one."""

    ids: bytes
    namespace: str = ""


def read_prompts(path: str, renderer: Renderer) -> tuple[WarmPrompt, ...]:
    """The prompts of a file, in its order; none for an empty path.

    A line is a JSON text, a list of messages, or an object with one of "text" and "messages" and,
    if wanted, "namespace"; empty lines are skipped. Messages are followed by nothing: what a client
    adds to them comes next. Raises ConfigError naming the line.
    """
    if not path:
        return ()
    try:
        lines = pathlib.Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--warm {path}: {error}") from error
    prompts = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                prompts.append(_prompt(json.loads(line), renderer))
            except (ValueError, RecursionError, RequestError) as error:
                raise ConfigError(f"--warm {path}, line {number}: {error}") from error
    return tuple(prompts)


async def warm_up(prompts: Sequence[WarmPrompt], submit: Submit) -> None:
    """Compute the prompts, the first of the file first, and have them kept. Raises ConfigError for
    one that is too long, or what submit raises."""
    cached = computed = 0
    for number, prompt in enumerate(prompts, start=1):
        nobody = Origin(counted=False)
        request = Request(
            prompt=prompt.ids,
            params=COMPUTE_ONLY,
            namespace=of_key(prompt.namespace, ""),
            warm=True,
            origin=nobody,
        )
        try:
            async with contextlib.aclosing(submit(request)) as chunks:
                async for chunk in chunks:
                    if chunk.finish is not None:
                        cached += chunk.finish.usage.cached_tokens
                        computed += chunk.finish.usage.computed_tokens
        except RequestError as error:
            raise ConfigError(f"--warm, prompt {number}: {error}") from error
    if prompts:
        logger.info(
            "warm: %d prompts, %d tokens computed, %d shared", len(prompts), computed, cached
        )


def _prompt(line: Any, renderer: Renderer) -> WarmPrompt:
    namespace = ""
    if isinstance(line, dict):
        fields = dict(line)
        namespace = fields.pop("namespace", "")
        if not isinstance(namespace, str):
            raise InvalidRequest("namespace must be a text")
        if len(fields) == 1 and fields.keys() <= {"text", "messages"}:
            (line,) = fields.values()
    match line:
        case str():
            ids = renderer.encode_text(line)
        case [_, *_] if all(map(_is_message, line)):
            ids = renderer.encode_messages(line, add_generation_prompt=False)
        case _:
            raise InvalidRequest(
                "a text, a list of messages (role and content), or an object with either is wanted"
            )
    if not len(ids):
        raise InvalidRequest("the prompt is empty")
    return WarmPrompt(ids.astype("<i4").tobytes(), namespace)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and value.get("content") is not None and "role" in value
