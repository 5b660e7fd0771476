"""A stand-in for a model provider. It implements OpenAI's chat completions, and decides by the content of the messages.

python model.py prints the URL that it listens on.
"""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def reply(messages: list[Any]) -> dict[str, Any]:
    """Return the model's next message in a conversation."""
    order = messages[0]["content"].split()[2]
    results = [json.loads(each["content"]) for each in messages if each["role"] == "tool"]
    if not results:
        return call("find_order", {"order": order}, len(messages))
    if not results[0].get("paid"):
        return {"role": "assistant", "content": f"Order {order} was not paid: nothing is refunded."}
    if len(results) == 1:
        return call("refund", {"order": order, "eur": results[0]["eur"]}, len(messages))
    return {"role": "assistant", "content": f"Order {order} was refunded: {results[1]['eur']} EUR."}


def call(name: str, arguments: dict[str, Any], number: int) -> dict[str, Any]:
    """Return a message that calls a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    calls = [{"id": f"call_{number}", "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


class Provider(BaseHTTPRequestHandler):
    """Answers POST /v1/chat/completions."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer one request."""
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        message = reply(request["messages"])
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        usage = {"prompt_tokens": 20 * len(request["messages"]), "completion_tokens": 10}
        answer = {
            "id": f"chatcmpl-{len(request['messages'])}", "object": "chat.completion", "model": request["model"],
            "usage": usage, "choices": [{"index": 0, "finish_reason": reason, "message": message}],
        }  # fmt: skip
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
