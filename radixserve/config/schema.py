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
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        Doc(description="where the model runs; auto: cuda where there is a GPU that torch can use"),
    ] = "auto"
    attention: Annotated[
        Literal["auto", "reference", "cpu", "native", "triton"],
        Doc(description="attention backend"),
    ] = "auto"
    threads: Annotated[int, Doc(description="CPU threads of the engine; 0: physical cores")] = 0
    cuda_graphs: Annotated[
        bool, Doc(description="capture decode steps as CUDA graphs (device cuda only)")
    ] = True
    torch_compile: Annotated[
        bool, Doc(description="compile layers but for attention with torch.compile (not native)")
    ] = False


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    page_size: Annotated[int, Doc(description="tokens in a page of the KV pool")] = 16
    kv_tokens: Annotated[
        int, Doc(description="KV pool size in tokens; 0 takes memory_share of free memory")
    ] = 0
    kv_dtype: Annotated[
        Literal["model", "fp8_e4m3"],
        Doc(description="type of the KV pool's numbers: the model's, or one byte each"),
    ] = "model"
    memory_share: Annotated[
        float,
        Doc(description="share of free memory for the KV pool; 0: 0.9 of a GPU's, 0.5 of a host's"),
    ] = 0.0
    kv_prefault: Annotated[
        bool, Doc(description="take the KV pool's memory at start (on a GPU it always is)")
    ] = False
    prefix_cache: Annotated[bool, Doc(description="share prefixes between requests")] = True
    audit: Annotated[bool, Doc(description="check the cache's invariants after every call")] = False
    warm: Annotated[
        str,
        Doc(description="file of prompts, one JSON text or message list a line, to compute first"),
    ] = ""
    warm_share: Annotated[
        float, Doc(description="share of the KV pool in which warm prompts are kept first")
    ] = 0.25
    program_share: Annotated[
        float,
        Doc(description="share of the KV pool kept for programs between calls (--policy program)"),
    ] = 0.25
    program_seconds: Annotated[
        float, Doc(description="how long that is kept after a program's last call")
    ] = 10.0


class ScheduleConfig(msgspec.Struct, frozen=True, kw_only=True):
    policy: Annotated[
        Literal["lpm", "fcfs", "program"],
        Doc(description="order of the waiting queue; program: by what each program has had"),
    ] = "lpm"
    max_running: Annotated[int, Doc(description="requests that run at once")] = 64
    max_waiting: Annotated[int, Doc(description="requests that may wait; more get 429")] = 4096
    token_budget: Annotated[int, Doc(description="tokens in one step, all rows together")] = 2048
    chunk: Annotated[int, Doc(description="prompt tokens of one request in one step")] = 512
    max_overtakes: Annotated[
        int, Doc(description="how often later requests may pass the one that has waited longest")
    ] = 16
    program_overtakes: Annotated[
        int, Doc(description="how often they may pass any one under --policy program")
    ] = 500
    max_programs: Annotated[
        int, Doc(description="programs without a call under way that --policy program remembers")
    ] = 4096
    reserve: Annotated[
        float,
        Doc(description="share of their remaining output that running requests keep reserved"),
    ] = 0.3
    shared_attention: Annotated[
        bool,
        Doc(description="read a prefix once for all rows of a step (native and triton attention)"),
    ] = True
    overlap: Annotated[
        Literal["auto", "on", "off"],
        Doc(description="launch a step before the ids of the one before are back; auto: on cuda"),
    ] = "auto"
    step_retries: Annotated[int, Doc(description="failed steps that a request survives")] = 1
    step_timeout_s: Annotated[
        float, Doc(description="seconds that one step may take before /health fails; 0: any")
    ] = 300.0


class GrammarConfig(msgspec.Struct, frozen=True, kw_only=True):
    compile_seconds: Annotated[
        float, Doc(description="seconds of work that compiling one constraint may take")
    ] = 10.0
    mask_seconds: Annotated[
        float, Doc(description="longest that finding the next tokens of one output may take")
    ] = 1.0
    cache_mib: Annotated[int, Doc(description="compiled constraints that are kept, in MiB")] = 256
    forced_tokens: Annotated[
        bool, Doc(description="append what a constraint leaves no choice about without sampling")
    ] = True
    max_compiling: Annotated[
        int,
        Doc(
            description="different constraints that may wait to be compiled; beyond it the "
            "namespace with most gets 429"
        ),
    ] = 64
    compiler_at_start: Annotated[
        bool,
        Doc(description="start the process that compiles constraints before the first one comes"),
    ] = False
    compiler_idle_s: Annotated[
        float,
        Doc(description="seconds without work after which it is started, too; 0: not before"),
    ] = 2.0


class ParallelConfig(msgspec.Struct, frozen=True, kw_only=True):
    tp_size: Annotated[int, Doc(description="tensor-parallel ranks (only 1 so far)")] = 1


class TextConfig(msgspec.Struct, frozen=True, kw_only=True):
    chat_template: Annotated[
        str, Doc(description="file of a jinja chat template; empty takes the model's own")
    ] = ""
    max_prompt_tokens: Annotated[
        int, Doc(description="longest prompt; 0 takes the context length")
    ] = 0
    tool_parser: Annotated[
        Literal["template", "hermes", "mistral", "llama3_json", "pythonic", "generic"],
        Doc(description="syntax of tool calls; template: the one that the chat template shows"),
    ] = "template"
    reasoning_parser: Annotated[
        str,
        Doc(
            description="tags of reasoning: think, qwen3, deepseek_r1, mistral, described, none, "
            "or two tags like <reason>..</reason>; template: those that the chat template shows"
        ),
    ] = "template"


class HttpConfig(msgspec.Struct, frozen=True, kw_only=True):
    host: Annotated[str, Doc(description="address to listen on")] = "127.0.0.1"
    port: Annotated[int, Doc(description="port to listen on")] = 30000
    ssl_certfile: Annotated[
        str, Doc(description="PEM file of the certificate chain; with ssl_keyfile: serve TLS")
    ] = ""
    ssl_keyfile: Annotated[str, Doc(description="PEM file of the certificate's private key")] = ""
    api_key: Annotated[
        tuple[str, ...], Doc(description="key that clients may send; give it again for more")
    ] = ()
    admin_key: Annotated[
        tuple[str, ...],
        Doc(description="key for flush_cache, abort_all and the views of the cache, too"),
    ] = ()
    api_key_file: Annotated[
        str, Doc(description="JSON or TOML file of named keys with limits, see docs/operators.md")
    ] = ""
    cors_origin: Annotated[
        tuple[str, ...], Doc(description="origin whose pages may call the server; * for any")
    ] = ()
    public_metrics: Annotated[bool, Doc(description="/metrics needs no key")] = True
    max_body: Annotated[int, Doc(description="largest request body in bytes")] = 16 * 2**20
    body_timeout: Annotated[
        float, Doc(description="seconds that a client has to send its body; 0: any")
    ] = 60.0
    max_streams: Annotated[
        int, Doc(description="calls that may be open at once; more get 429; 0: any")
    ] = 1024
    request_timeout: Annotated[
        float, Doc(description="longest that a request may take in seconds; 0: any")
    ] = 1800.0
    program_steps: Annotated[int, Doc(description="steps that a program may have")] = 10_000
    program_calls: Annotated[int, Doc(description="calls that a program may make")] = 512
    program_branches: Annotated[
        int, Doc(description="branches that a program may have, forked ones and its own")
    ] = 512
    program_text: Annotated[
        int, Doc(description="characters that values may come to in a program's texts, in all")
    ] = 4 * 2**20
    program_timeout: Annotated[
        float, Doc(description="longest that a program may take in seconds; 0: any")
    ] = 3600.0
    reader_timeout: Annotated[
        float, Doc(description="seconds after which a client that stops reading is dropped; 0: any")
    ] = 30.0
    default_max_tokens: Annotated[
        int, Doc(description="output bound of OpenAI requests that name none, in tokens")
    ] = 1024
    store_responses: Annotated[
        int, Doc(description="replies of /v1/responses that are kept for later ones; 0: none")
    ] = 10_000
    store_mib: Annotated[int, Doc(description="memory for them in MiB; the oldest go first")] = 64
    store_seconds: Annotated[float, Doc(description="seconds that they are kept")] = 86_400.0
    grace: Annotated[float, Doc(description="seconds that streams get to end at shutdown")] = 10.0
    supervise: Annotated[
        bool, Doc(description="start a new engine when the engine has crashed or hangs")
    ] = False
    access_log: Annotated[bool, Doc(description="log a line for each call")] = True
    log_format: Annotated[Literal["text", "json"], Doc(description="how log lines look")] = "text"
    otlp_endpoint: Annotated[
        str, Doc(description="URL to send OpenTelemetry traces to; needs radixserve[otel]")
    ] = ""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    model: ModelConfig = ModelConfig()
    cache: CacheConfig = CacheConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    grammar: GrammarConfig = GrammarConfig()
    parallel: ParallelConfig = ParallelConfig()
    text: TextConfig = TextConfig()
    http: HttpConfig = HttpConfig()
