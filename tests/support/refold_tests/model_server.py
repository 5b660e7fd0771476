"""A stand-in for model providers. It implements the wire formats of OpenAI and Anthropic, and Gemini's without streams.
It records its requests.

Its answer is always the same, unless a test sets its mind: a function from a request's body to the model's answer, a
Reply.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple

from refold_tests.http_server import serving

WORDS = ["It ", "was ", "paid ", "für ", "42 €."]
TEXT = "".join(WORDS)


class Reply(NamedTuple):
    """A model's answer: words, or the tools that it calls, with their arguments."""

    words: Sequence[str] = ()
    tools: Sequence[tuple[str, Mapping[str, Any]]] = ()


class ModelServer:
    """One server.

    requests: path, headers and body of each request; raw: the bodies as bytes. failing: how many of the next requests
    get a 429. breaks: whether streams end in the middle. hold: streams set `held` in the middle, and wait for it. mind:
    answers requests; it may block.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.raw: list[bytes] = []
        self.mind: Callable[[Any], Reply] = lambda body: Reply(WORDS)
        self.failing = 0
        self.breaks = False
        self.hold: threading.Event | None = None
        self.held = threading.Event()
        self.url = ""

    def reset(self) -> None:
        """Reset the server."""
        self.requests.clear()
        self.raw.clear()
        self.failing, self.breaks = 0, False


@contextmanager
def model_server() -> Iterator[ModelServer]:
    """Run a server on loopback until the end of the block."""
    server = ModelServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            server.raw.append(raw)
            body = json.loads(raw)
            server.requests.append((self.path, dict(self.headers.items()), body))
            if server.failing:
                server.failing -= 1
                error = {"error": {"type": "rate_limit_error", "message": "slow down", "code": "rate"}}
                return self._whole(error, 429, {"Retry-After-Ms": "1"})
            reply = server.mind(body)
            if self.path.endswith(":generateContent"):
                return self._whole(_gemini(body, reply))
            answer, events = (_anthropic if self.path.endswith("/messages") else _openai)(self.path, body, reply)
            return self._events(events) if body.get("stream") else self._whole(answer)

        def _whole(self, answer: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
            data = json.dumps(answer, ensure_ascii=False).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Set-Cookie", "session=top-secret-cookie")
            self.send_header("X-Request-Id", f"req-{len(server.requests)}")
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def _events(self, events: list[tuple[str, Any]]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream; charset=utf-8")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for index, (name, event) in enumerate(events):
                if server.breaks and index == 3:
                    self.close_connection = True
                    return
                text = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
                data = (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                self.wfile.flush()
                if (hold := server.hold) is not None and index == 3:  # the test may end it at any moment
                    server.held.set()
                    hold.wait(60)
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    with serving(Handler) as server.url:
        yield server


def _openai(path: str, body: Any, reply: Reply) -> tuple[Any, list[tuple[str, Any]]]:
    if path.endswith("/embeddings"):
        found = {"object": "embedding", "index": 0, "embedding": [0.25, -1.5e-7, 1.0]}
        return {"object": "list", "model": body["model"], "data": [found], "usage": {"prompt_tokens": 2}}, []
    if path.endswith("/responses"):
        return _responses(body, reply)
    head = {"id": "chatcmpl-1", "created": 1700000000, "model": body["model"]}
    message: dict[str, Any] = {"role": "assistant", "content": "".join(reply.words) or None}
    deltas: list[Any] = [{"content": word} for word in reply.words]
    if reply.tools:
        message["tool_calls"] = [
            {"id": _call_id(body, index), "type": "function", "function": {
                "name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}}
            for index, (name, arguments) in enumerate(reply.tools)
        ]  # fmt: skip
        deltas += [{"tool_calls": [{"index": index, **call}]} for index, call in enumerate(message["tool_calls"])]
    reason = "tool_calls" if reply.tools else "stop"
    usage = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
    whole = {
        **head, "object": "chat.completion", "usage": usage,
        "choices": [{"index": 0, "finish_reason": reason, "message": message}],
    }  # fmt: skip
    events: list[tuple[str, Any]] = [
        ("", {**head, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]}) for delta in deltas
    ]
    last = {"index": 0, "delta": {}, "finish_reason": reason}
    events += [("", {**head, "object": "chat.completion.chunk", "choices": [last], "usage": usage}), ("", "[DONE]")]
    return whole, events


def _responses(body: Any, reply: Reply) -> tuple[Any, list[tuple[str, Any]]]:
    content = [{"type": "output_text", "text": "".join(reply.words), "annotations": []}]
    output: list[Any] = [
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
    ]
    if reply.tools:
        output = [
            {"type": "function_call", "id": f"fc_{index}", "call_id": f"call_{len(body['input'])}_{index}",
             "name": name, "arguments": json.dumps(arguments, ensure_ascii=False), "status": "completed"}
            for index, (name, arguments) in enumerate(reply.tools)
        ]  # fmt: skip
    whole = {
        "id": "resp_1", "object": "response", "created_at": 1700000000, "model": body["model"], "output": output,
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": body.get("tools", []), "status": "completed",
        "instructions": body.get("instructions"),
        "usage": {
            "input_tokens": 7, "output_tokens": 5, "total_tokens": 12,
            "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 2},
        },
    }  # fmt: skip
    last = {"type": "response.completed", "sequence_number": 0, "response": whole}
    return whole, [("response.completed", last)]


def _anthropic(path: str, body: Any, reply: Reply) -> tuple[Any, list[tuple[str, Any]]]:
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"], "stop_sequence": None}
    usage = {"input_tokens": 7, "output_tokens": 5}
    content: list[dict[str, Any]] = [{"type": "text", "text": "".join(reply.words)}] if reply.words else []
    deltas: list[list[dict[str, Any]]] = [[{"type": "text_delta", "text": word} for word in reply.words]] * len(content)
    for index, (name, arguments) in enumerate(reply.tools):
        content.append({"type": "tool_use", "id": _call_id(body, index), "name": name, "input": dict(arguments)})
        deltas.append([{"type": "input_json_delta", "partial_json": json.dumps(arguments, ensure_ascii=False)}])
    reason = "tool_use" if reply.tools else "end_turn"
    whole = {**head, "content": content, "stop_reason": reason, "usage": usage}
    start = {**head, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    events: list[tuple[str, Any]] = [("message_start", {"type": "message_start", "message": start})]
    for index, block in enumerate(content):
        empty = {**block, "text": ""} if block["type"] == "text" else {**block, "input": {}}
        events += [
            ("content_block_start", {"type": "content_block_start", "index": index, "content_block": empty}),
            *(
                ("content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta})
                for delta in deltas[index]
            ),
            ("content_block_stop", {"type": "content_block_stop", "index": index}),
        ]
    events += [
        ("message_delta", {
            "type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage,
        }),
        ("message_stop", {"type": "message_stop"}),
    ]  # fmt: skip
    return whole, events


def _gemini(body: Any, reply: Reply) -> Any:
    parts: list[Any] = [{"text": "".join(reply.words)}] if reply.words else []
    parts += [{"functionCall": {"name": name, "args": dict(arguments)}} for name, arguments in reply.tools]  # no ids
    candidate = {"index": 0, "finishReason": "STOP", "content": {"role": "model", "parts": parts}}
    usage = {"promptTokenCount": 7, "candidatesTokenCount": 5, "totalTokenCount": 12}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-x", "responseId": "response-1"}


def _call_id(body: Any, index: int) -> str:
    """Return the id of a call. It differs for each turn of a conversation, and is the same for an equal turn."""
    return f"call_{len(body['messages'])}_{index}"
