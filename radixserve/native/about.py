"""What a front says about itself: its model, its configuration, its gauges.

Owns: the two answers that HTTP and rs.Engine give alike. Must not know: HTTP.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

import msgspec

from radixserve.config.schema import Config
from radixserve.native.calls import Door


def model_info(gateway: Door, config: Config) -> dict[str, Any]:
    chat = gateway.renderer.chat
    return {
        "model_path": config.model.model,
        "served_model_name": gateway.model_name,
        "is_generation": True,
        "context_len": gateway.info.context_len,
        "vocab_size": gateway.info.vocab_size,
        "dtype": gateway.info.dtype,
        "eos_ids": sorted(gateway.renderer.eos_ids),
        "has_chat_template": chat.available,
        "prefix_stable_chat": chat.prefix_stable,
    }


async def server_info(gateway: Door, config: Config) -> dict[str, Any]:
    """Gauges and version at the top, the resolved configuration in its groups; never a key."""
    settings = msgspec.to_builtins(config)
    for name in ("api_key", "admin_key"):
        settings["http"][name] = ["***" for _ in settings["http"][name]]
    return {
        "version": importlib.metadata.version("radixserve"),
        "served_model_name": gateway.model_name,
        "context_len": gateway.info.context_len,
        "dtype": gateway.info.dtype,
        **msgspec.to_builtins(await gateway.gauges()),
        "config": settings,
    }
