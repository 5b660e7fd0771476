"""A stand-in for OpenAI's responses over WebSocket. It answers each message with given events."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve


class SocketProvider:
    """One provider.

    answers: for the next messages, each a list of messages, or a code to close the connection with; None ends the
    connection without a close. asked: the received messages. heads: the headers of each handshake. refusal: the status
    of the answer to a handshake. ended: the code that each connection was closed with.
    """

    def __init__(self) -> None:
        self.answers: list[Sequence[str | bytes] | int | None] = []
        self.asked: list[str | bytes] = []
        self.heads: list[dict[str, str]] = []
        self.refusal = 0
        self.ended: list[int] = []
        self.url = ""


def events_of(number: int, text: str, calls: Sequence[dict[str, Any]] = (), more: str = "") -> list[str]:
    """Return the events of a response with a text, or with tool calls."""
    identity = f"resp_{number}"
    said = [{"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed",
             "content": [{"type": "output_text", "text": text, "annotations": []}]}]  # fmt: skip
    response = {"id": identity, "object": "response", "model": "m", "status": "completed",
                "output": [*calls] or said, "usage": {"input_tokens": 5, "output_tokens": 2}}  # fmt: skip
    lane = {"stream_id": more} if more else {}
    deltas = [{"type": "response.output_text.delta", "delta": word, **lane} for word in text.split()]
    return [json.dumps(each) for each in (
        {"type": "response.created", "response": {"id": identity}, **lane}, *deltas,
        {"type": "response.completed", "response": response, **lane},
    )]  # fmt: skip


@contextmanager
def socket_provider() -> Iterator[SocketProvider]:
    """Run a provider on loopback until the end of the block."""
    provider = SocketProvider()

    def refused(connection: ServerConnection, request: Request) -> Response | None:
        provider.heads.append(dict(request.headers.raw_items()))
        if not provider.refusal:
            return None
        return connection.respond(provider.refusal, '{"error": {"message": "no such key"}}')

    def serve_one(connection: ServerConnection) -> None:
        try:
            for message in connection:
                provider.asked.append(message)
                given = provider.answers.pop(0)
                if given is None:
                    connection.socket.close()
                    return
                if isinstance(given, int):
                    connection.close(given, "as the test wants it")
                    return
                for each in given:
                    connection.send(each)
        except ConnectionClosed:
            pass
        finally:
            provider.ended.append(connection.close_code or 1006)

    with serve(serve_one, "127.0.0.1", 0, process_request=refused, max_size=None) as server:
        provider.url = f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield provider
        finally:
            server.shutdown()
            thread.join()
