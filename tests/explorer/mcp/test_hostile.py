"""Malformed messages, callers without permission, and signals: never a crash, never a traceback."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
from typing import IO

import pytest

from refold_tests.command import environment, started
from refold_tests.damaged_mcp import damaged
from refold_tests.forked import Forked
from refold_tests.mcp import HttpServer, http_server

pytestmark = pytest.mark.outside

TOKEN = "0123456789abcdef-secret"
SEED = int(os.environ.get("REFOLD_MCP_SEED", "20261126"))
COUNT = 30 * int(os.environ.get("REFOLD_FAULT_ROUNDS", "6"))
"""10,000 with REFOLD_FAULT_ROUNDS=334."""
PING = {"jsonrpc": "2.0", "id": "alive", "method": "ping"}


def checked(said: str) -> None:
    """Check that no answer contains a traceback, a path of refold's source, or the name of a defect."""
    for word in ("Traceback", 'File "', ".py:", "which is a defect"):
        assert word not in said, said[:2_000]


def test_damaged_messages_over_http_are_answered_without_harm(server: HttpServer) -> None:
    chance = random.Random(SEED)
    for number in range(COUNT):
        message = damaged(chance)
        version = chance.choice([{}, {"MCP-Protocol-Version": "2026-07-28"}, {"MCP-Protocol-Version": "x"}])
        status, said = server.post(message, headers=version)
        assert status in (200, 202, 400, 404, 413), (SEED, number, message[:500], said[:500])
        checked(said)
    status, said = server.post(json.dumps(PING).encode())
    assert (status, json.loads(said)["result"]) == (200, {})


def test_damaged_messages_over_stdio_are_skipped(incident_url: str) -> None:
    chance = random.Random(SEED + 1)
    process = serving(incident_url)
    assert process.stdin is not None
    assert process.stdout is not None
    sent = b"\n".join(damaged(chance).replace(b"\n", b" ") for _ in range(COUNT))
    # The server answers while it is still being written to, and it answers the last request only while its input
    # is open.
    writer = threading.Thread(target=write_line, args=(process.stdin, sent + b"\n" + json.dumps(PING).encode() + b"\n"))
    writer.start()
    said = b""
    alive = {"jsonrpc": "2.0", "id": "alive", "result": {}}
    for line in process.stdout:
        said += line
        if json.loads(line) == alive:
            break
    else:
        pytest.fail(f"seed {SEED}: it ended before its last answer: {process.communicate()[1][-2_000:]!r}")
    writer.join()
    more, log = process.communicate(timeout=280)
    assert process.returncode == 0
    for text in (said.decode(), more.decode(), log.decode()):
        checked(text)


def write_line(to: IO[bytes], text: bytes) -> None:
    to.write(text)
    to.flush()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["terminated", "interrupted"])
def test_signal_ends_it_at_once_while_its_client_is_silent(incident_url: str, number: signal.Signals) -> None:
    process = serving(incident_url)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(PING).encode() + b"\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["result"] == {}
    process.send_signal(number)
    assert process.wait(120) == {signal.SIGTERM: 143, signal.SIGINT: 130}[number]
    said, log = process.communicate()
    assert (said, log) == (b"", b"")


def serving(url: str) -> Forked:
    pipe = subprocess.PIPE
    return started("mcp", env=environment(url), stdin=pipe, stdout=pipe, stderr=pipe, text=False)


def test_only_known_hosts_and_no_web_origin_are_served(server: HttpServer) -> None:
    port = server.url.rpartition(":")[2].partition("/")[0]
    ping = json.dumps(PING).encode()
    assert server.post(ping)[0] == 200
    for wrong in ({"Host": f"evil.example:{port}"}, {"Origin": "https://evil.example"}, {"Origin": "null"}):
        assert server.post(ping, headers=wrong)[0] == 403
    assert [server.post(b"", method)[0] for method in ("GET", "DELETE", "PUT")] == [405, 405, 405]
    assert server.post(ping, headers={"Content-Encoding": "gzip"})[0] == 415
    assert server.post(b" " * (1 << 20) + ping)[0] == 413


def test_requests_without_the_token_are_refused(incident_url: str) -> None:
    ping = json.dumps(PING).encode()
    with http_server(incident_url, TOKEN) as server:
        assert server.post(ping)[0] == 401
        assert server.post(ping, headers={"Authorization": "Bearer wrong"})[0] == 401
        assert server.post(ping, headers={"Authorization": f"Bearer {TOKEN}"})[0] == 200
