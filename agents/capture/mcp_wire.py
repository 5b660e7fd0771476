"""The messages between a client and an MCP server: each request with its answer is stored in the spool.

1. Both directions are parsed as lines of JSON-RPC; the caller passes on the bytes themselves. Anything else is ignored.
2. A request is in the spool when it is passed on to the server, and its answer before it is passed on to the client. So
   every answer that a client got is in the spool, whatever kills the process.
3. A tool's effect is known from the list that the server sent: a tool with `readOnlyHint` reads, any other may write.
4. A request that the spool cannot store is passed on, and counted.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

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


class McpWire:
    """Both directions of one session. Each direction is fed by its own thread."""

    def __init__(self, spool: Spool, now_micros: Callable[[], int]) -> None:
        self._spool = spool
        self._now_micros = now_micros
        self._turn = threading.Lock()
        self._sent, self._said = MessageLines(), MessageLines()
        self._asked: dict[str, tuple[SpoolWriter | None, float, str]] = {}
        self._effects: dict[str, Effect] = {}

    def sent(self, data: bytes) -> None:
        """Take bytes from the client that are about to be passed on."""
        with self._turn:
            for line in self._sent.lines(data):
                for message in messages_in(line):
                    if "method" in message and message.get("id") is not None:
                        self._ask(message)

    def said(self, data: bytes) -> None:
        """Take bytes from the server that are about to be passed on."""
        with self._turn:
            for line in self._said.lines(data):
                for message in messages_in(line):
                    if "method" not in message and ("result" in message or "error" in message):
                        self._answer(message)

    def end(self) -> None:
        """End the requests that have no answer."""
        with self._turn:
            for spooling, began_s, _ in self._asked.values():
                if spooling is not None:
                    lost = Broken("ServerEnded", "the server ended, and had not answered")
                    spooling.end("none", _since_ms(began_s), lost)
            self._asked.clear()

    def _ask(self, message: dict[str, Any]) -> None:
        method, params = str(message["method"]), message.get("params")
        given: dict[str, Any] = params if isinstance(params, dict) else {}
        tool = given.get("name") if method == CALL else None
        is_call = isinstance(tool, str)
        name = tool if isinstance(tool, str) else f"{PREFIX}{method}"
        effect = self._effects.get(name, "write") if is_call else "read"
        asked = given.get("arguments") or {} if is_call else {k: v for k, v in given.items() if k != "_meta"}
        request = {"method": method, "effect": effect, "asked": asked}
        spooling = self._spool.begin(name, request, self._now_micros())
        self._asked[_key(message)] = (spooling, time.monotonic(), method)

    def _answer(self, message: dict[str, Any]) -> None:
        spooling, began_s, method = self._asked.pop(_key(message), (None, 0.0, ""))
        if method == LISTING:
            self._learn(message.get("result"))
        if spooling is not None:
            said = {name: message[name] for name in ("result", "error") if name in message}
            spooling.head([], "", 0, [], _since_ms(began_s))
            spooling.add(json.dumps(said).encode(), _since_ms(began_s))
            spooling.end("whole", _since_ms(began_s))

    def _learn(self, listed: Any) -> None:
        tools = listed.get("tools") if isinstance(listed, dict) else None
        for each in tools if isinstance(tools, list) else ():
            if isinstance(each, dict) and isinstance(each.get("name"), str):
                hints = each.get("annotations")
                is_reading = isinstance(hints, dict) and hints.get("readOnlyHint") is True
                self._effects[each["name"]] = "read" if is_reading else "write"


def _key(message: dict[str, Any]) -> str:
    return json.dumps(message.get("id"))


def _since_ms(began_s: float) -> float:
    return (time.monotonic() - began_s) * 1000
