"""The one model that is served, by its name.

Owns: whether a body names it, what is told of it. Must not know: HTTP.
"""

from __future__ import annotations

from typing import Any

from radixserve.api.faults import NotFound
from radixserve.native.calls import Door


def check_model(name: str, gateway: Door) -> None:
    """Raise NotFound for another model; a body without a name means the one that is served."""
    if name not in ("", gateway.model_name):
        raise no_model(name, gateway)


def no_model(name: str, gateway: Door) -> NotFound:
    return NotFound(
        f"the model {name!a} does not exist; this server has {gateway.model_name!r}",
        param="model",
        code="model_not_found",
    )


def model_fields(gateway: Door, created: int) -> dict[str, Any]:
    """created: seconds, Unix."""
    return {
        "id": gateway.model_name,
        "object": "model",
        "created": created,
        "owned_by": "radixserve",
        "root": gateway.model_name,
        "parent": None,
        "max_model_len": gateway.info.context_len,
    }
