"""The language: Python functions of a state that call a model many times.

    import radixserve as rs

    @rs.function
    def capital(s, country):
        s += rs.user(f"What is the capital of {country}?")
        s += rs.assistant(rs.gen("answer", max_tokens=16))

    state = capital.run(country="France", backend=rs.RuntimeEndpoint("http://localhost:30000"))
    print(state["answer"])

Imports nothing of the runtime, and no torch.
"""

from radixserve.lang.api import (
    Runtime,
    assistant,
    assistant_begin,
    assistant_end,
    gen,
    gen_int,
    gen_string,
    image,
    select,
    separate_reasoning,
    system,
    system_begin,
    system_end,
    tool,
    tools,
    user,
    user_begin,
    user_end,
    video,
)
from radixserve.lang.async_state import AsyncForkGroup, AsyncState
from radixserve.lang.backends.anthropic import Anthropic
from radixserve.lang.backends.base import AsyncBackend, Backend
from radixserve.lang.backends.default import flush_cache, get_server_info, set_default_backend
from radixserve.lang.backends.engine import EngineBackend
from radixserve.lang.backends.http import RuntimeEndpoint
from radixserve.lang.backends.mock import Mock
from radixserve.lang.backends.openai import OpenAI
from radixserve.lang.backends.record import Recorder, Replay
from radixserve.lang.choices import (
    ChoicesMethod,
    greedy_token_selection,
    probability,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from radixserve.lang.compiled.program import Compiled
from radixserve.lang.compiled.tracing import placeholder
from radixserve.lang.errors import (
    BackendError,
    DeadlineExceeded,
    DynamicProgram,
    GraphError,
    LangError,
    MisusedValue,
    ProgramCancelled,
    ProgramError,
    TypedOutputError,
    Unsupported,
)
from radixserve.lang.program import Program, function
from radixserve.lang.state import ForkGroup, ProgramState
from radixserve.lang.toolkit import ToolCall, Turn

__all__ = [
    "Anthropic",
    "AsyncBackend",
    "AsyncForkGroup",
    "AsyncState",
    "Backend",
    "BackendError",
    "ChoicesMethod",
    "Compiled",
    "DeadlineExceeded",
    "DynamicProgram",
    "EngineBackend",
    "ForkGroup",
    "GraphError",
    "LangError",
    "MisusedValue",
    "Mock",
    "OpenAI",
    "Program",
    "ProgramCancelled",
    "ProgramError",
    "ProgramState",
    "Recorder",
    "Replay",
    "Runtime",
    "RuntimeEndpoint",
    "ToolCall",
    "Turn",
    "TypedOutputError",
    "Unsupported",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_server_info",
    "greedy_token_selection",
    "image",
    "placeholder",
    "probability",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "tool",
    "tools",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
    "video",
]
