"""Measures what a capture by `refold proxy` costs an agent, next to a direct connection and to mitmproxy.

Each request is a conversation of 40 KB with a different beginning, on connections that stay open; the answer is a
stream of some events. All processes are on this machine. Measured from the client:

- the time to the first byte of the answer, for sequential requests, and what each proxy adds to the direct connection
- how much later a paced event arrives than it was sent: both use the same clock
- requests a second by 8 clients at once
- the proxy's resident memory after a tenth of the requests and after all
- the bytes of a session of 200 turns in the log, where each request repeats all earlier turns, against the new bytes

mitmproxy runs in reverse mode with a script that saves the traffic (peers/mitmproxy), in a separate environment.
LiteLLM's proxy is not measured: one of its releases was reported as compromised in 2026.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple
from urllib.parse import urlsplit

from peers.building import built_python
from rich.console import Console
from rich.table import Table

from refold.testing.processes import ServerMissing

HERE = Path(__file__).parent
REQUEST_BYTES = 40_000
REQUESTS = 10_000
TIMED = 500
PACED = 20
CLIENTS = 8
SESSION_TURNS = 200
MESSAGE_BYTES = 2_000
WAIT_S = 60.0


class ProxyFigures(NamedTuple):
    """The figures of one connection kind. Times in milliseconds; memory in MB, None without a proxy."""

    p50_ms: float
    p99_ms: float
    delay_ms: float
    per_second: float
    early_mb: float | None
    late_mb: float | None


class BenchConnection:
    """An HTTP/1.1 connection that stays open."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)

    async def open(self) -> None:
        """Connect."""
        host, port = self._parts.hostname, self._parts.port
        self._reader, self._writer = await asyncio.open_connection(host, port, limit=1 << 22)

    async def ask(self, path: str, body: bytes) -> tuple[float, list[tuple[int, bytes]]]:
        """Return the seconds to the first byte of the answer, and each chunk with its arrival time in nanoseconds."""
        head = f"POST {path} HTTP/1.1\r\nHost: {self._parts.netloc}\r\nContent-Type: application/json\r\n"
        began = time.perf_counter()
        self._writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        answered = await self._reader.readuntil(b"\r\n\r\n")
        first_s = time.perf_counter() - began
        assert b" 200 " in answered.split(b"\r\n")[0], answered
        chunks: list[tuple[int, bytes]] = []
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            data = await self._reader.readexactly(size + 2)
            chunks.append((time.monotonic_ns(), data[:-2]))
        await self._reader.readuntil(b"\r\n")
        return first_s, chunks

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


def request_body(number: int, size: int = REQUEST_BYTES) -> bytes:
    """Return a conversation that differs for each number."""
    text = f"request {number} " + "and what was said before " * (size // 25)
    messages = [{"role": "user", "content": text[:size]}]
    return json.dumps({"model": "bench", "stream": True, "messages": messages}).encode()


async def measured(url: str, pid: int | None, share: int) -> ProxyFigures:
    """Measure all figures of one connection kind."""
    path, number = "/v1/chat/completions", 0
    connection = BenchConnection(url)
    await connection.open()
    took = []
    for number in range(50 + TIMED // share):
        first_s, _ = await connection.ask(path, request_body(number))
        took.append(first_s * 1000)
    delays = []
    for each in range(max(2, PACED // share)):
        _, chunks = await connection.ask(f"/paced{path}", request_body(number + 1 + each))
        delays += [(at - int(data.split()[1])) / 1e6 for at, data in chunks if data.startswith(b"data: ")]
    connection.close()
    total, done, early = REQUESTS // share, 0, None
    began = time.perf_counter()

    async def client(own: int) -> None:
        nonlocal done, early
        connection = BenchConnection(url)
        await connection.open()
        for each in range(total // CLIENTS):
            await connection.ask(path, request_body(1_000_000 * (own + 1) + each))
            done += 1
            if done == total // 10 and pid is not None:
                early = resident_mb(pid)
        connection.close()

    await asyncio.gather(*(client(own) for own in range(CLIENTS)))
    rate = done / (time.perf_counter() - began)
    cuts = quantiles(took[50:], n=100)
    late = None if pid is None else resident_mb(pid)
    return ProxyFigures(cuts[49], cuts[98], quantiles(delays, n=100)[49], rate, early, late)


def resident_mb(pid: int) -> float:
    """Return a process's resident memory in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


@contextmanager
def started(command: list[str], said: str, environment: dict[str, str] | None = None) -> Iterator[tuple[str, int]]:
    """Run a process until the end of the block; yields the URL in the first line that contains `said`, and its id."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})})
    try:
        assert process.stdout is not None
        line = next(line for line in process.stdout if said in line)
        yield next(word for word in line.split() if word.startswith("http")), process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


@contextmanager
def mitmproxy(upstream: str, folder: Path) -> Iterator[tuple[str, int]]:
    """Run mitmproxy in reverse mode. Raises ServerMissing if it cannot be installed."""
    python = built_python(HERE / "peers" / "mitmproxy")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run = "import sys; from mitmproxy.tools.main import mitmdump; sys.exit(mitmdump())"
    command = [
        str(python), "-c", run, "--quiet", "--mode", f"reverse:{upstream}", "--listen-host", "127.0.0.1",
        "--listen-port", str(port), "-s", str(HERE / "peers" / "mitmproxy" / "save.py"),
    ]  # fmt: skip
    process = subprocess.Popen(command, env={**os.environ, "SAVED": str(folder / "saved.jsonl")})
    try:
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise ServerMissing("mitmproxy did not start") from None
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def refold_proxy(upstream: str, folder: Path) -> list[str]:
    """Return the command of a capture into a folder."""
    return [
        sys.executable, "-P", "-m", "refold.explorer.cli.main", "proxy", "--upstream", upstream, "--listen",
        "127.0.0.1:0", "--spool", str(folder / "spool"), "--log", f"file:{folder / 'log'}",
    ]  # fmt: skip


def stored_session(upstream: str, folder: Path, turns: int) -> tuple[int, int]:
    """Return the new bytes of a session's turns, and the bytes that the session takes in the log."""
    new = 0

    async def session(url: str) -> None:
        nonlocal new
        messages: list[dict[str, str]] = []
        connection = BenchConnection(url)
        await connection.open()
        for _ in range(turns):
            said = os.urandom(MESSAGE_BYTES // 2).hex()
            new += len(said)
            messages.append({"role": "user", "content": said})
            body = json.dumps({"model": "bench", "stream": True, "messages": messages}).encode()
            _, chunks = await connection.ask("/v1/chat/completions", body)
            new += sum(len(data) for _, data in chunks)
            messages.append({"role": "assistant", "content": "words " * 8})
        connection.close()

    with started(refold_proxy(upstream, folder), "refold proxy:") as (url, _):
        asyncio.run(session(url))
    stored = sum(each.stat().st_size for each in (folder / "log").rglob("*") if each.is_file())
    return new, stored


def show(console: Console, folder: Path, share: int) -> None:
    """Print the tables."""
    found: dict[str, ProxyFigures] = {}
    with tempfile.TemporaryDirectory(dir=folder) as place, \
            started([sys.executable, str(HERE / "capture_upstream.py")], "http") as (upstream, _):  # fmt: skip
        with console.status("a direct connection"):
            found["direct"] = asyncio.run(measured(upstream, None, share))
        with (
            console.status("refold proxy"),
            started(refold_proxy(upstream, Path(place)), "refold proxy:") as (url, pid),
        ):
            found["refold proxy"] = asyncio.run(measured(url, pid, share))
        try:
            with console.status("mitmproxy"), mitmproxy(upstream, Path(place)) as (url, pid):
                found["mitmproxy, saving"] = asyncio.run(measured(url, pid, share))
        except ServerMissing as missing:
            console.print(f"mitmproxy: {missing}")
        with console.status("a session"), tempfile.TemporaryDirectory(dir=folder) as own:
            new, stored = stored_session(upstream, Path(own), max(10, SESSION_TURNS // share))
    goals = "goals: first byte +1.5 ms at p50, +8 ms at p99; a paced event +0.3 ms; 700 a second"
    table = Table(title=f"Capture at {REQUEST_BYTES // 1000} KB requests ({goals})")
    columns = ("by", "first byte p50, ms", "added", "p99, ms", "added", "paced event p50, ms", "added",
               f"a second, {CLIENTS} clients", "MB at a tenth", "MB at the end")  # fmt: skip
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    direct = found["direct"]
    for name, each in found.items():
        pairs = [(each.p50_ms, direct.p50_ms), (each.p99_ms, direct.p99_ms), (each.delay_ms, direct.delay_ms)]
        cells = [text for own, bare in pairs for text in (f"{own:.2f}", f"{own - bare:.2f}")]
        memory = ["-" if mb is None else f"{mb:,.0f}" for mb in (each.early_mb, each.late_mb)]
        table.add_row(name, *cells, f"{each.per_second:,.0f}", *memory)
    console.print(table)
    console.print(f"A session of {max(10, SESSION_TURNS // share)} turns: {new:,} new bytes, {stored:,} in the log, "
                  f"{stored / new:.2f} times (goal: 3)")  # fmt: skip
