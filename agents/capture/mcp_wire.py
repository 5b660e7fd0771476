"""The messages between a client and an MCP server: each request with its answer is stored in the spool.

1. Both directions are parsed as lines of JSON-RPC; the caller passes on the bytes themselves. Anything else is ignored.
2. A request is in the spool when it is passed on to the server, and its answer before it is passed on to the client. So
   every answer that a client got is in the spool, whatever kills the process.
3. A tool's effect is known from the list that the server sent: a tool with `readOnlyHint` reads, any other may write.
4. A request that the spool cannot store is passed on, and counted.
5. An answer belongs to the request with its id on the same channel. Over standard input and output there is one
   channel; over HTTP there are many (mcp_http.py).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from refold.agents.capture.exchange import Broken
from refold.agents.capture.spool import Spool, SpoolWriter
from refold.agents.journal.record import Effect

LINE_BYTES_MAX = 64 << 20
CALL = "tools/call"
LISTING = "tools/list"
PREFIX = "mcp:"
"""The prefix of the method, in the name of a request that is not a tool call."""


class MessageLines:
    """Assembles lines from pieces. A line that is longer than LINE_BYTES_MAX is skipped."""

    def __init__(self) -> None:
        self._begun = bytearray()
        self._is_over = False

    def lines(self, data: bytes) -> Iterator[bytes]:
        """Yield the lines that a piece completes."""
        *whole, rest = data.split(b"\n")
        for each in whole:
            line, self._begun = bytes(self._begun + each), bytearray()
            if not self._is_over:
                yield line
            self._is_over = False
        if len(self._begun) + len(rest) > LINE_BYTES_MAX:
            self._begun, self._is_over = bytearray(), True
        elif not self._is_over:
            self._begun += rest


def messages_in(line: bytes) -> Iterator[dict[str, Any]]:
    """Yield the JSON-RPC messages of a line: one, or a batch."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return
    for each in found if isinstance(found, list) else [found]:
        if isinstance(each, dict):
            yield each


_SERVER_ENDED = Broken("ServerEnded", "the server ended, and had not answered")


class Pending(NamedTuple):
    """A request that has no answer yet, by which its answer is found.

    Attributes:
        number: A number that distinguishes requests of one id.
    """

    channel: str
    id: str
    number: int


class _OpenRequest(NamedTuple):
    spooling: SpoolWriter | None
    began_s: float
    method: str
    number: int


class McpWire:
    """Both directions of one session. Each direction is fed by its own thread."""

    def __init__(self, spool: Spool, now_micros: Callable[[], int]) -> None:
        self._spool = spool
        self._now_micros = now_micros
        self._turn = threading.Lock()
        self._sent, self._said = MessageLines(), MessageLines()
        self._asked: dict[tuple[str, str], _OpenRequest] = {}
        self._count = 0
        self._effects: dict[str, Effect] = {}

    def sent(self, data: bytes) -> None:
        """Take bytes from the client that are about to be passed on."""
        for line in self._sent.lines(data):
            for message in messages_in(line):
                self.asked(message)

    def said(self, data: bytes) -> None:
        """Take bytes from the server that are about to be passed on."""
        for line in self._said.lines(data):
            for message in messages_in(line):
                self.answered(message)

    def asked(self, message: dict[str, Any], channel: str = "") -> Pending | None:
        """Take a message that is about to be passed to the server.

        Returns:
            The request that waits for its answer; None if the message is no request.
        """
        if "method" not in message or not isinstance(message.get("id"), str | int | float):
            return None
        with self._turn:
            return self._ask(message, channel)

    def answered(self, message: dict[str, Any], channel: str = "") -> None:
        """Take a message that is about to be passed to the client."""
        if "method" not in message and ("result" in message or "error" in message):
            with self._turn:
                self._answer(message, channel)

    def lost(self, requests: Iterable[Pending], why: Broken) -> None:
        """End those of some requests that have no answer."""
        with self._turn:
            for channel, id, number in requests:
                request = self._asked.get((channel, id))
                if request is not None and request.number == number:
                    self._lose(self._asked.pop((channel, id)), why)

    def end(self, why: Broken = _SERVER_ENDED) -> None:
        """End every request that has no answer."""
        with self._turn:
            for request in self._asked.values():
                self._lose(request, why)
            self._asked.clear()

    def _lose(self, request: _OpenRequest, why: Broken) -> None:
        if request.spooling is not None:
            request.spooling.end("none", _since_ms(request.began_s), why)

    def _ask(self, message: dict[str, Any], channel: str) -> Pending:
        method, params = str(message["method"]), message.get("params")
        given: dict[str, Any] = params if isinstance(params, dict) else {}
        tool = given.get("name") if method == CALL else None
        is_call = isinstance(tool, str)
        name = tool if isinstance(tool, str) else f"{PREFIX}{method}"
        effect = self._effects.get(name, "write") if is_call else "read"
        arguments = given.get("arguments") or {} if is_call else {k: v for k, v in given.items() if k != "_meta"}
        request = {"method": method, "effect": effect, "asked": arguments}
        spooling = self._spool.begin(name, request, self._now_micros())
        self._count += 1
        pending = Pending(channel, json.dumps(message["id"]), self._count)
        before = self._asked.pop((channel, pending.id), None)
        if before is not None:
            self._lose(before, Broken("IdReused", "the client used the id of the request again before the answer came"))
        self._asked[channel, pending.id] = _OpenRequest(spooling, time.monotonic(), method, self._count)
        return pending

    def _answer(self, message: dict[str, Any], channel: str) -> None:
        request = self._asked.pop((channel, json.dumps(message.get("id"))), None)
        if request is None:
            return
        if request.method == LISTING:
            self._learn(message.get("result"))
        if request.spooling is not None:
            answer = {name: message[name] for name in ("result", "error") if name in message}
            request.spooling.head([], "", 0, [], _since_ms(request.began_s))
            request.spooling.add(json.dumps(answer).encode(), _since_ms(request.began_s))
            request.spooling.end("whole", _since_ms(request.began_s))

    def _learn(self, listed: Any) -> None:
        tools = listed.get("tools") if isinstance(listed, dict) else None
        for each in tools if isinstance(tools, list) else ():
            if isinstance(each, dict) and isinstance(each.get("name"), str):
                hints = each.get("annotations")
                is_reading = isinstance(hints, dict) and hints.get("readOnlyHint") is True
                self._effects[each["name"]] = "read" if is_reading else "write"


def _since_ms(began_s: float) -> float:
    return (time.monotonic() - began_s) * 1000
