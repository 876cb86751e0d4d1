"""Every setting of radixserve, in frozen groups.

Owns: names, types, defaults and documentation of settings; flags.py makes the command line from
these fields and README's table is generated from them. "auto" becomes concrete once, in
resolve.py; nothing writes a config after that. A value born at run time is an argument elsewhere,
never a field here. Must not know: torch.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Doc = msgspec.Meta


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    model: Annotated[
        str, Doc(description="Hugging Face folder or hub id, GGUF file, or the alias smollm2")
    ] = "smollm2"
    served_name: Annotated[
        str, Doc(description="name in the API; empty takes the model reference")
    ] = ""
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Doc(description="auto: bfloat16 where the device is fast at it, else float32"),
    ] = "auto"
    device: Annotated[Literal["auto", "cpu"], Doc(description="where the model runs")] = "auto"
    attention: Annotated[
        Literal["auto", "reference", "cpu", "native"], Doc(description="attention backend")
    ] = "auto"
    threads: Annotated[int, Doc(description="CPU threads of the engine; 0: physical cores")] = 0


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    page_size: Annotated[int, Doc(description="tokens in a page of the KV pool")] = 16
    kv_tokens: Annotated[
        int, Doc(description="KV pool size in tokens; 0 takes memory_share of free memory")
    ] = 0
    memory_share: Annotated[float, Doc(description="share of free memory for the KV pool")] = 0.5
    prefix_cache: Annotated[bool, Doc(description="share prefixes between requests")] = True
    audit: Annotated[bool, Doc(description="check the cache's invariants after every call")] = False


class ScheduleConfig(msgspec.Struct, frozen=True, kw_only=True):
    policy: Annotated[Literal["lpm", "fcfs"], Doc(description="order of the waiting queue")] = "lpm"
    max_running: Annotated[int, Doc(description="requests that run at once")] = 64
    max_waiting: Annotated[int, Doc(description="requests that may wait; more get 429")] = 4096
    token_budget: Annotated[int, Doc(description="tokens in one step, all rows together")] = 2048
    chunk: Annotated[int, Doc(description="prompt tokens of one request in one step")] = 512
    max_overtakes: Annotated[
        int, Doc(description="how often later requests may pass a waiting one")
    ] = 50
    reserve: Annotated[
        float,
        Doc(description="share of their remaining output that running requests keep reserved"),
    ] = 0.3
    shared_attention: Annotated[
        bool,
        Doc(description="read a prefix once for all rows of a step (native attention)"),
    ] = True
    step_retries: Annotated[int, Doc(description="failed steps that a request survives")] = 1


class ParallelConfig(msgspec.Struct, frozen=True, kw_only=True):
    tp_size: Annotated[int, Doc(description="tensor-parallel ranks (only 1 so far)")] = 1


class TextConfig(msgspec.Struct, frozen=True, kw_only=True):
    chat_template: Annotated[
        str, Doc(description="file of a jinja chat template; empty takes the model's own")
    ] = ""
    max_prompt_tokens: Annotated[
        int, Doc(description="longest prompt; 0 takes the context length")
    ] = 0


class HttpConfig(msgspec.Struct, frozen=True, kw_only=True):
    host: Annotated[str, Doc(description="address to listen on")] = "127.0.0.1"
    port: Annotated[int, Doc(description="port to listen on")] = 30000
    api_key: Annotated[str, Doc(description="key that clients must send; empty: none")] = ""
    max_body: Annotated[int, Doc(description="largest request body in bytes")] = 16 * 2**20
    default_max_tokens: Annotated[
        int, Doc(description="output bound of OpenAI requests that name none, in tokens")
    ] = 1024
    grace: Annotated[float, Doc(description="seconds that streams get to end at shutdown")] = 10.0


class Config(msgspec.Struct, frozen=True, kw_only=True):
    model: ModelConfig = ModelConfig()
    cache: CacheConfig = CacheConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    parallel: ParallelConfig = ParallelConfig()
    text: TextConfig = TextConfig()
    http: HttpConfig = HttpConfig()
