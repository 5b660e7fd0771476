"""Messages of MCP that a client may send, each with one defect."""

from __future__ import annotations

import json
import random
from typing import Any

from refold_tests.explored import CONFIG

ASKING: list[dict[str, Any]] = [
    {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "state", "arguments": {"entity": CONFIG}}},
    {"jsonrpc": "2.0", "id": "x", "method": "tools/call", "params": {"name": "runs", "arguments": {"cursor": "@1"}}},
    {"jsonrpc": "2.0", "id": 2, "method": "resources/read", "params": {"uri": f"refold://entity/{CONFIG}?at=v1"}},
    {"jsonrpc": "2.0", "id": 3, "method": "resources/list", "params": {"cursor": "cut:1.x@0"}},
    {"jsonrpc": "2.0", "id": 4, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}},
    {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}},
    {"jsonrpc": "2.0", "id": 5, "method": "tools/list", "params": {"_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28"}}},
]  # fmt: skip
VALUES: list[Any] = [None, True, -1, 1e308, 10**30, "", "\ud83d", "\x00", "x" * 5_000, [], {}, [[[[]]]], {"": {"": ""}}]


def damaged(chance: random.Random) -> bytes:
    """Return a message with one defect: in a value, in a member, in the text, or in all of it."""
    message = json.loads(json.dumps(chance.choice(ASKING)))
    way = chance.randrange(6)
    if way < 3:
        inner = message
        while True:
            name = chance.choice(list(inner))
            if isinstance(inner[name], dict) and inner[name] and chance.random() < 0.7:
                inner = inner[name]
                continue
            break
        if way == 0:
            inner[name] = chance.choice(VALUES)
        elif way == 1:
            del inner[name]
        else:
            inner[str(chance.choice(VALUES))] = chance.choice(VALUES)
        return json.dumps(message).encode()
    text = bytearray(json.dumps(message).encode())
    if way == 3:
        return bytes(text[: chance.randrange(len(text))])
    if way == 4:
        for _ in range(chance.randrange(1, 6)):
            text[chance.randrange(len(text))] = chance.choice([each for each in range(256) if each not in (10, 13)])
        return bytes(text)
    return chance.choice([b"[" * 50_000, b"[]", b"null", b"\xff\xfe", b"{" * 3_000, b"[" + bytes(text) + b"]"])
