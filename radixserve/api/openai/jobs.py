"""From a body to a call that is ready to run.

Owns: which path reads a body how. Must not know: HTTP; how a body came.
"""

from __future__ import annotations

from collections.abc import Callable

from radixserve.api.openai.chat import chat_job
from radixserve.api.openai.common import Job
from radixserve.api.openai.completions import completion_job
from radixserve.api.openai.models import check_model
from radixserve.api.openai.schema import read_chat, read_completion
from radixserve.native.calls import Door

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def job_of(path: str, body: object, gateway: Door, default_max_tokens: int) -> tuple[Job, bool]:
    """(the call, whether it is streamed) for a body sent to CHAT or COMPLETIONS. Takes time in the
    length of the body: call in a thread.

    Raises InvalidRequest naming the field at fault, NotFound for another model.
    """
    return _READERS[path](body, gateway, default_max_tokens)


def _chat(body: object, gateway: Door, default_max_tokens: int) -> tuple[Job, bool]:
    given = read_chat(body)
    check_model(given.model, gateway)
    return chat_job(given, gateway, default_max_tokens), given.stream


def _completion(body: object, gateway: Door, default_max_tokens: int) -> tuple[Job, bool]:
    given = read_completion(body)
    check_model(given.model, gateway)
    return completion_job(given, gateway, default_max_tokens), given.stream


_READERS: dict[str, Callable[[object, Door, int], tuple[Job, bool]]] = {
    CHAT: _chat,
    COMPLETIONS: _completion,
}
