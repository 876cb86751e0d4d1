"""Small scripted HTTP servers in the shapes of other people's APIs."""

import http.server
import json
import threading

import radixserve.lang as sgl


class Scripted(http.server.ThreadingHTTPServer):
    """Answers POSTs with reply(path, body), a (status, JSON) or a list of events for a stream.

    seen: (path, headers, body) of each request. hold: requests wait while it is set. drop: the
    connection is closed without a word.
    """

    daemon_threads = True
    request_queue_size = 128  # with 5, many clients at once wait a second for a connection

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen = []
        self.refusal = None
        self.drop = False
        self.hold = threading.Event()
        self.gone = threading.Semaphore(0)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), name="scripted")

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def reply(self, path, body):
        raise NotImplementedError

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.hold.clear()
        self.shutdown()
        self._thread.join()
        self.server_close()

    def handle_error(self, request, client_address):
        """Clients that go away are part of the tests."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Scripted

    def do_GET(self):
        self.server.seen.append((self.path, dict(self.headers), None))
        self.answer(200, {"data": [{"id": "scripted"}]})

    def do_POST(self):
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.loads(raw) if raw else None
        self.server.seen.append((self.path, dict(self.headers), body))
        words = raw.decode()
        while self.server.hold.is_set() or "hang" in words:
            if self.is_gone():
                self.server.gone.release()
                return
            threading.Event().wait(0.01)
        if self.server.drop or "drop" in words:
            return
        status, value = self.server.refusal or self.server.reply(self.path, body)
        if status == 200 and isinstance(value, list):
            self.stream(value)
        else:
            self.answer(status, value)

    def is_gone(self):
        """Whether the client has closed the connection."""
        self.connection.settimeout(0.01)
        try:
            return self.connection.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:
            return True

    def stream(self, events):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for event in events:
            name = f"event: {event['type']}\n" if "type" in event else ""
            data = event if isinstance(event, str) else json.dumps(event)
            self.wfile.write(f"{name}data: {data}\n\n".encode())

    def answer(self, status, value):
        data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in (value.pop("_headers", {}) if isinstance(value, dict) else {}).items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


def text_of(content):
    """The text of a message, of its blocks where it has some."""
    if isinstance(content, str):
        return content
    return " ".join(each.get("text") or each.get("content") or "" for each in content)


def answer_to(messages):
    """The last word of the last message, twice, as what a begun assistant message goes on with."""
    words = text_of(messages[-1]["content"] or "").split() or ["nothing"]
    return f"{words[-1]} {words[-1]}"


class Anthropic(Scripted):
    """The messages API as documented, strict about what it takes."""

    FIELDS = frozenset(
        {"model", "messages", "system", "max_tokens", "stop_sequences", "stream", "temperature",
         "top_p", "top_k", "metadata", "tools", "tool_choice"}
    )  # fmt: skip

    def reply(self, path, body):
        if path != "/v1/messages":
            return 404, self.error("not_found_error", path)
        unknown = set(body) - self.FIELDS
        if unknown or "max_tokens" not in body:
            return 400, self.error("invalid_request_error", f"fields {sorted(unknown)}")
        if any(each["role"] not in ("user", "assistant") for each in body["messages"]):
            return 400, self.error("invalid_request_error", "roles")
        text, reason, stop = answer_to(body["messages"]), "end_turn", None
        for each in body.get("stop_sequences", ()):
            if each in text:
                text, reason, stop = text[: text.index(each)], "stop_sequence", each
        usage = {
            "input_tokens": 3,
            "cache_read_input_tokens": 4,
            "cache_creation_input_tokens": 1,
            "output_tokens": len(text.split()),
        }
        ends = {"stop_reason": reason, "stop_sequence": stop}
        content = [{"type": "text", "text": text}]
        used = self.used(body)
        if used is not None:
            content.append(used)
            ends["stop_reason"] = "tool_use"
        message = {"id": "msg_1", "type": "message", "role": "assistant", "usage": usage}
        if not body.get("stream"):
            return 200, {**message, "content": content, **ends}
        half = len(text) // 2
        return 200, [
            {"type": "message_start", "message": {**message, "content": []}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text"}},
            {"type": "ping"},
            *(
                {
                    "type": "content_block_delta",
                    "index": 0,
                    "delta": {"type": "text_delta", "text": piece},
                }
                for piece in (text[:half], text[half:])
            ),
            {"type": "content_block_stop", "index": 0},
            *self.streamed(used),
            {"type": "message_delta", "delta": ends, "usage": {"output_tokens": 2}},
            {"type": "message_stop"},
        ]

    @staticmethod
    def used(body):
        """A call of the first tool where one must come: its first argument is "red"."""
        if body.get("tool_choice", {}).get("type") not in ("any", "tool"):
            return None
        tool = body["tools"][0]
        [name, *_] = tool["input_schema"]["properties"]
        return {"type": "tool_use", "id": "toolu_1", "name": tool["name"], "input": {name: "red"}}

    @staticmethod
    def streamed(used):
        if used is None:
            return []
        text = json.dumps(used["input"])
        deltas = [
            {"type": "input_json_delta", "partial_json": each} for each in ("", text[:4], text[4:])
        ]
        return [
            {"type": "content_block_start", "index": 1, "content_block": {**used, "input": {}}},
            *({"type": "content_block_delta", "index": 1, "delta": delta} for delta in deltas),
            {"type": "content_block_stop", "index": 1},
        ]

    @staticmethod
    def error(kind, message):
        return {"type": "error", "error": {"type": kind, "message": message}}


class OpenAI(Scripted):
    """The two completion endpoints, strict about fields that OpenAI's own do not have."""

    CHAT = frozenset(
        {"model", "messages", "max_completion_tokens", "temperature", "top_p", "n", "stop", "seed",
         "frequency_penalty", "presence_penalty", "logit_bias", "logprobs", "top_logprobs",
         "response_format", "stream", "stream_options", "tools", "tool_choice",
         "parallel_tool_calls"}
    )  # fmt: skip

    def reply(self, path, body):
        unknown = set(body) - self.CHAT
        if path == "/v1/chat/completions" and unknown:
            error = {"message": f"unknown {sorted(unknown)}", "type": "invalid_request_error"}
            return 400, {"error": error | {"param": None, "code": None}}
        text = answer_to(body["messages"])
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
        usage["prompt_tokens_details"] = {"cached_tokens": 3}
        calls = self.called(body)
        if not body.get("stream"):
            message = {"role": "assistant", "content": text, "refusal": None, **calls}
            choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
            return 200, {"id": "c", "choices": [choice], "usage": usage}
        deltas = [{"role": "assistant", "content": ""}, *({"content": c} for c in text)]
        for i, call in enumerate(calls.get("tool_calls", ())):
            begun = {**call, "index": i, "function": {**call["function"], "arguments": ""}}
            rest = [
                {"index": i, "function": {"arguments": each}}
                for each in call["function"]["arguments"]
            ]
            deltas += [{"tool_calls": [each]} for each in (begun, *rest)]
        deltas.append({})
        chunks = [
            {"choices": [{"index": 0, "delta": delta, "finish_reason": None if delta else "stop"}]}
            for delta in deltas
        ]
        return 200, [*chunks, {"choices": [], "usage": usage}, "[DONE]"]

    @staticmethod
    def called(body):
        """A call of each tool that may be called, where one must come."""
        if body.get("tool_choice", "none") in ("none", "auto"):
            return {}
        return {
            "tool_calls": [
                {
                    "id": f"call_{i}",
                    "type": "function",
                    "function": {"name": tool["function"]["name"], "arguments": '{"a": "b"}'},
                }
                for i, tool in enumerate(body["tools"])
            ]
        }


class Native(Scripted):
    """Our own /generate, answered by a mock: each prompt's text again. Faults by what is in it.

    "500" is refused, "400" is called a bad constraint, "drop" loses the connection, "half" breaks
    off after one chunk, "hang" is never answered.
    """

    def __init__(self):
        super().__init__()
        self.mock = sgl.Mock(lambda prompt: prompt)

    def reply(self, path, body):
        if path != "/generate":
            return 200, {}
        text = "".join(part.get("text", "") for part in body["input"])
        for status, param in (("500", None), ("400", "sampling_params.json_schema")):
            if status in text:
                error = {"message": f"fault {status}", "type": "t", "code": "c", "param": param}
                return int(status), {"error": error}
        if "choices" in body["input"][-1]:
            return 200, self.mock.choose(body)
        if body["stream"]:
            chunks = list(self.mock.stream(body))
            return 200, chunks[:1] if "half" in text else [*chunks, "[DONE]"]
        return 200, self.mock.generate(body)
