"""The main job, while the kernel denies every socket except the configured ones (refold_tests.confined)."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest

import refold
from refold.testing.processes import free_ports
from refold_tests.brokers import SharedKafka
from refold_tests.command import COMMAND, environment
from refold_tests.confined import Server, confined
from refold_tests.waiting import await_true
from refold_tests.worker_process import page

# Runs commands one after another in one process, as `refold` runs them. The first one that fails ends it.
COMMANDS = """
import json, sys
from refold.explorer.cli.main import run
for words in json.loads(sys.argv[1]):
    status = run(words)
    if status:
        sys.exit(f"{words}: {status}")
import refold
with refold.open(read_only=True) as log:
    assert log.rebuild(parallel=True).source["apart"]
"""
PLANTED = {
    "connect, in C": """
import ctypes, socket
made = socket.socket()
address = b"\\x02\\x00\\x00\\x09\\xc0\\x00\\x02\\x01" + bytes(8)
print(ctypes.CDLL(None).connect(made.fileno(), address, 16))
""",
    "connect": "import socket; print(socket.socket().connect_ex(('192.0.2.1', 9)))",
    "another port": "import socket; print(socket.socket().connect_ex(('127.0.0.1', 9)))",
    "a child's": """
import subprocess, sys
subprocess.run([sys.executable, "-c", "import socket; socket.socket().connect_ex(('192.0.2.1', 9))"], check=True)
""",
    "a name to be looked up": """
import contextlib, socket
with contextlib.suppress(OSError):
    socket.create_connection(("telemetry.example", 443), 1)
""",
    "datagrams": """
import contextlib, socket
with contextlib.suppress(OSError):
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.1", 53))
""",
    "every interface": """
import contextlib, socket
with contextlib.suppress(OSError):
    socket.socket().bind(("0.0.0.0", 0))
""",
    "IPv6": """
import contextlib, socket
with contextlib.suppress(OSError):
    socket.socket(socket.AF_INET6).connect(("2001:db8::1", 9))
""",
}
SEEN = {
    "connect, in C": ("connect", "192.0.2.1:9"), "connect": ("connect", "192.0.2.1:9"),
    "another port": ("connect", "127.0.0.1:9"), "a child's": ("connect", "192.0.2.1:9"),
    "a name to be looked up": ("socket", "family 2, type 2"), "datagrams": ("socket", "family 2, type 2"),
    "every interface": ("bind", "0.0.0.0:0"), "IPv6": ("connect", "2001:db8::1:9"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_planted_connection_is_denied_and_detected(name: str) -> None:
    with confined([sys.executable, "-P", "-c", PLANTED[name]], [("192.0.2.2", 9)], environment()) as running:
        status, _, said = running.end()
    assert status == 0, said
    assert SEEN[name] in {(each.call, each.what) for each in running.denied}, running.denied


def test_configured_connection_is_allowed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port})); socket.create_server(('127.0.0.1', 0))"
        with confined([sys.executable, "-P", "-c", code], [("127.0.0.1", port)], environment()) as running:
            assert running.end()[0] == 0
    assert running.denied == []


def test_demo_needs_no_network(tmp_path: Path) -> None:
    with confined([*COMMAND, "demo"], [], environment(), tmp_path) as running:
        status, out, err = running.end()
    assert status == 0, (out, err)
    assert running.denied == []


def test_main_workflow_on_kafka_connects_only_to_its_brokers(kafka: SharedKafka, prefix: str, tmp_path: Path) -> None:
    url = f"kafka://{kafka.bootstrap}/{prefix}"
    with refold.open(f"{url}?partitions=2") as log:
        log.observe("document/d", {"fields": {"a": 1}})
    allowed: list[Server] = [(host, int(port)) for host, _, port in [kafka.bootstrap.rpartition(":")]]
    (pages,) = free_ports(1)
    env = environment(url, {"REFOLD_KEYS": f"file:{tmp_path / 'keys'}"})
    words = [
        ["observe", "tool_config/acme", "rate_limit=50"],
        ["mark", "before"],
        ["snapshot", "--json"],
        ["state", "tool_config/acme", "--json"],
        ["rebuild", "--at", "@before", "--json"],
        ["verify", "--json"],
        ["export", str(tmp_path / "out.jsonl")],
        ["demo", "--incident"],
        ["run", "replay", "incident-1", "--json"],
        ["doctor", "--json"],
    ]
    worker = [*COMMAND, "worker", "--port", pages, "--data", tmp_path / "w", "--agents", "refold.agents.examples.loops"]
    with confined(worker, allowed, env) as folding:
        await_true(lambda: folding.process.poll() is not None or _is_ready(pages))
        assert folding.process.poll() is None
        commands = [sys.executable, "-P", "-c", COMMANDS, json.dumps(words)]
        with confined(commands, [*allowed, ("127.0.0.1", pages)], env, tmp_path) as asking:
            status, out, err = asking.end()
        assert status == 0, (out, err)
        await_true(lambda: _is_ready(pages))
        folding.process.terminate()
        assert folding.end()[0] == 0
    assert (asking.denied, folding.denied) == ([], [])


def _is_ready(port: int) -> bool:
    try:
        return page(f"http://127.0.0.1:{port}/ready")[0] == 200
    except OSError:
        return False
