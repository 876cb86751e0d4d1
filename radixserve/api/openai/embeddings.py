"""POST /v1/embeddings.

Owns: from inputs to requests, from pooled hidden states to vectors. Must not know: HTTP, how hidden
states come about.

A vector is made of the final hidden states of the served model, behind its last norm: their mean
over all tokens, or that of the last token. Models that were trained to embed say which of the two
is theirs; others give vectors that tell texts apart, and no more should be asked of them.
"""

from __future__ import annotations

import base64
import contextlib
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from radixserve.api.openai.models import check_model
from radixserve.chunks import Finish, Request
from radixserve.errors import InternalError, InvalidRequest
from radixserve.native.calls import Calls, Door, new_rid
from radixserve.native.collect import completed
from radixserve.native.explained import cache_fields
from radixserve.native.fields import Name, Seconds, read
from radixserve.native.prompts import text_or_ids
from radixserve.native.request import check_rid, namespace
from radixserve.wire.messages import Pooling
from radixserve.wire.params import SamplingParams

COMPUTE_ONLY = SamplingParams(max_new_tokens=0, temperature=0.0)

REFUSED: dict[str, tuple[Any, ...]] = {
    "truncate_prompt_tokens": (),
    "add_special_tokens": (True,),
    "encoding": (),
    "input_type": (),
    "lora_path": ("",),
}


class EmbeddingRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """input: a text, ids, or a list of either. dimensions: keep so many of the first, then scale
    again. pooling: mean needs every token computed, last takes from the cache what is there.
    normalize: to length 1. user: a label. explain_cache: see explained.cache_fields."""

    model: str = ""
    input: Any
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    pooling: Pooling = "mean"
    normalize: bool = True
    user: Name = ""
    priority: int = 0
    cache_salt: Name = ""
    rid: str = ""
    timeout_s: Seconds | None = None
    explain_cache: bool = False


class Embedding:
    """A call ready to run. requests: one for each input."""

    def __init__(self, body: object, gateway: Door) -> None:
        """Check and tokenise. Takes time in the length of the text: call in a thread.

        Raises InvalidRequest naming the field, NotFound for another model.
        """
        self._given = given = read(EmbeddingRequest, body, refused=REFUSED)
        check_model(given.model, gateway)
        if given.dimensions is not None and given.dimensions < 1:
            raise InvalidRequest("dimensions must be at least 1", param="dimensions")
        self._model = gateway.model_name
        self._tokenizer = gateway.renderer.tokenizer
        self._rid = given.rid or new_rid()
        check_rid(self._rid)
        prompts = text_or_ids(given.input, "input", gateway)
        self.requests = tuple(
            Request(
                prompt=prompt,
                params=COMPUTE_ONLY,
                rid=self._rid if len(prompts) == 1 else f"{self._rid}~{position}",
                namespace=namespace(given.cache_salt),
                priority=given.priority,
                pooling=given.pooling,
                timeout_s=given.timeout_s,
                explain_cache=given.explain_cache,
            )
            for position, (prompt, _) in enumerate(prompts)
        )

    async def answer(self, calls: Calls) -> dict[str, Any]:
        """The vectors, in the order of the inputs. Raises RequestError; cancelling aborts."""
        ends: dict[int, Finish] = {}
        async with contextlib.aclosing(calls.start(self.requests, self._rid)) as chunks:
            async for position, chunk in chunks:
                if chunk.finish is not None:
                    completed(chunk.finish)
                    ends[position] = chunk.finish
        order = range(len(self.requests))
        tokens = sum(ends[position].usage.prompt_tokens for position in order)
        cached = sum(ends[position].usage.cached_tokens for position in order)
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "index": i, "embedding": self._vector(ends[i].embedding)}
                for i in order
            ],
            "model": self._model,
            "usage": {
                "prompt_tokens": tokens,
                "total_tokens": tokens,
                "prompt_tokens_details": {"cached_tokens": cached},
            },
            **self._explanations(ends),
        }

    def _explanations(self, ends: dict[int, Finish]) -> dict[str, Any]:
        reports = [
            cache_fields(report, request.prompt, self._tokenizer)
            for position, request in enumerate(self.requests)
            if (report := ends[position].cache) is not None
        ]
        return {"cache": reports} if reports else {}

    def _vector(self, packed: bytes) -> list[float] | str:
        vector: npt.NDArray[np.float32] = np.frombuffer(packed, "<f4")
        if not len(vector):
            raise InternalError("the engine gave no embedding")
        size = self._given.dimensions or len(vector)
        if size > len(vector):
            raise InvalidRequest(
                f"dimensions is {size}, the model's vectors have {len(vector)}", param="dimensions"
            )
        vector = vector[:size]
        if self._given.normalize:
            length = float(np.linalg.norm(vector.astype(np.float64)))
            vector = (vector / (length or 1.0)).astype("<f4")
        if self._given.encoding_format == "base64":
            return base64.b64encode(vector.tobytes()).decode()
        return [float(value) for value in vector]
