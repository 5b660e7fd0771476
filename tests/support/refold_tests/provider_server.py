"""A stand-in for Gemini, Ollama and Bedrock, with the wire format of each, streaming and not.

Its mind (refold_tests.model_server.Reply) determines the answers. Streams are cut at arbitrary positions, regardless of
events.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

from refold_tests.http_server import serving
from refold_tests.model_server import WORDS, Reply

PIECE_BYTES = 173
JSON = "application/json"
EVENT_STREAM = "application/vnd.amazon.eventstream"
USAGE = (11, 7)
"""The tokens that each answer reports as read and written."""


class ProviderServer:
    """One server. requests: path, headers and body of each; sent: the body of each answer; mind: answers requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.sent: list[bytes] = []
        self.mind: Callable[[Any], Reply] = lambda body: Reply(WORDS)
        self.url = ""


@contextmanager
def provider_server() -> Iterator[ProviderServer]:
    """Run a server on loopback until the end of the block."""
    server = ProviderServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.requests.append((self.path, dict(self.headers.items()), body))
            content_type, data = answer_to(self.path, body, server.mind(body))
            server.sent.append(data)
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for at in range(0, len(data), PIECE_BYTES):
                piece = data[at : at + PIECE_BYTES]
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    with serving(Handler) as server.url:
        yield server


def answer_to(target: str, body: Any, reply: Reply) -> tuple[str, bytes]:
    """Return the content type and the body of an answer."""
    path, query = urlsplit(target)[2:4]
    if "/models/" in path:
        return _gemini(path.endswith(":streamGenerateContent"), "alt=sse" in query, reply)
    if path.startswith("/api/"):
        return _ollama(path, body, reply)
    if "/converse" in path:
        return _converse(path.endswith("-stream"), reply)
    return _invoke(path.endswith("-stream"), reply)


def _gemini(is_streamed: bool, is_events: bool, reply: Reply) -> tuple[str, bytes]:
    usage = {"promptTokenCount": USAGE[0], "candidatesTokenCount": USAGE[1], "totalTokenCount": sum(USAGE)}
    parts: list[Any] = [{"text": word} for word in reply.words]
    parts += [{"functionCall": {"name": name, "args": dict(given)}} for name, given in reply.tools]
    if not is_streamed:
        return JSON, _text(_candidate(parts, "STOP") | {"usageMetadata": usage})
    events = [_candidate([part], None) for part in parts]
    events.append(_candidate([{"text": ""}], "STOP") | {"usageMetadata": usage})
    if is_events:
        return "text/event-stream", b"".join(b"data: " + _text(each) + b"\r\n\r\n" for each in events)
    return JSON, b"[" + b",\r\n".join(_text(each) for each in events) + b"\r\n]"


def _candidate(parts: list[Any], reason: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    if reason is not None:
        found["finishReason"] = reason
    return {"candidates": [found], "modelVersion": "gemini-x-001", "responseId": "r-1"}


def _ollama(path: str, body: Any, reply: Reply) -> tuple[str, bytes]:
    head = {"model": body["model"], "created_at": "2026-01-01T00:00:00Z"}
    end = {"done": True, "done_reason": "stop", "prompt_eval_count": USAGE[0], "eval_count": USAGE[1]}
    calls = [{"function": {"name": name, "arguments": dict(given)}} for name, given in reply.tools]
    if path.endswith("/generate"):
        end["context"] = [len(reply.words), 2, 3]
        parts: list[dict[str, Any]] = [{"response": word} for word in reply.words]
        whole: dict[str, Any] = {"response": "".join(reply.words)}
        empty: dict[str, Any] = {"response": ""}
    else:
        parts = [{"message": {"role": "assistant", "content": word}} for word in reply.words]
        parts += [{"message": {"role": "assistant", "content": "", "tool_calls": [call]}} for call in calls]
        message = {"role": "assistant", "content": "".join(reply.words)} | ({"tool_calls": calls} if calls else {})
        whole, empty = {"message": message}, {"message": {"role": "assistant", "content": ""}}
    if body.get("stream", True):
        lines = [head | each | {"done": False} for each in parts] + [head | empty | end]
        return "application/x-ndjson", b"".join(_text(each) + b"\n" for each in lines)
    return JSON, _text(head | whole | end)


def _converse(is_streamed: bool, reply: Reply) -> tuple[str, bytes]:
    usage = {"inputTokens": USAGE[0], "outputTokens": USAGE[1], "totalTokens": sum(USAGE)}
    metrics = {"latencyMs": 5}
    reason = "tool_use" if reply.tools else "end_turn"
    content: list[Any] = [{"text": "".join(reply.words)}] if reply.words else []
    events: list[tuple[str, Any]] = [("messageStart", {"role": "assistant"})]
    events += [("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": word}}) for word in reply.words]
    for index, (name, given) in enumerate(reply.tools, len(content)):
        use = {"toolUseId": f"tooluse_{index}", "name": name}
        content.append({"toolUse": {**use, "input": dict(given)}})
        text = json.dumps(given)
        events.append(("contentBlockStart", {"contentBlockIndex": index, "start": {"toolUse": use}}))
        events += [
            ("contentBlockDelta", {"contentBlockIndex": index, "delta": {"toolUse": {"input": each}}})
            for each in (text[:4], text[4:])
        ]
        events.append(("contentBlockStop", {"contentBlockIndex": index}))
    events += [("messageStop", {"stopReason": reason}), ("metadata", {"usage": usage, "metrics": metrics})]
    if is_streamed:
        return EVENT_STREAM, b"".join(frame(name, _text(each)) for name, each in events)
    message = {"role": "assistant", "content": content}
    return JSON, _text({"output": {"message": message}, "stopReason": reason, "usage": usage, "metrics": metrics})


def _invoke(is_streamed: bool, reply: Reply) -> tuple[str, bytes]:
    """Answer in the format of Anthropic's messages. In a stream each event is base64 in a frame."""
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x"}
    usage = {"input_tokens": USAGE[0], "output_tokens": USAGE[1]}
    content: list[Any] = [{"type": "text", "text": "".join(reply.words)}] if reply.words else []
    content += [
        {"type": "tool_use", "id": f"toolu_{k}", "name": name, "input": dict(given)}
        for k, (name, given) in enumerate(reply.tools)
    ]
    reason = "tool_use" if reply.tools else "end_turn"
    if not is_streamed:
        return JSON, _text({**head, "content": content, "stop_reason": reason, "usage": usage})
    events: list[Any] = [{"type": "message_start", "message": {**head, "content": [], "usage": usage}}]
    for index, block in enumerate(content):
        is_text = block["type"] == "text"
        deltas: Iterable[Mapping[str, str]] = (
            [{"type": "text_delta", "text": word} for word in reply.words] if is_text
            else [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
        )  # fmt: skip
        begun = {**block, "text": ""} if is_text else {**block, "input": {}}
        events.append({"type": "content_block_start", "index": index, "content_block": begun})
        events += [{"type": "content_block_delta", "index": index, "delta": each} for each in deltas]
        events.append({"type": "content_block_stop", "index": index})
    events += [{"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}, {"type": "message_stop"}]
    chunks = [{"bytes": base64.b64encode(_text(each)).decode(), "p": "abcdefgh"[:5]} for each in events]
    return EVENT_STREAM, b"".join(frame("chunk", _text(each)) for each in chunks)


def frame(event: str, payload: bytes) -> bytes:
    """Return one frame of Amazon's event stream."""
    named = ((":event-type", event), (":content-type", JSON), (":message-type", "event"))
    headers = b"".join(
        struct.pack(">B", len(name)) + name.encode() + struct.pack(">BH", 7, len(value)) + value.encode()
        for name, value in named
    )
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    message = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + payload
    return message + struct.pack(">I", zlib.crc32(message))


def _text(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
