"""Measures what a capture by `refold proxy` costs an agent, next to a direct connection and to mitmproxy.

Each request is a conversation of 40 KB with a different beginning, on connections that stay open; the answer is a
stream of some events. All processes are on this machine. Measured from the client:

- the time to the first byte of the answer, for sequential requests, and what each proxy adds to the direct connection
- how much later a paced event arrives than it was sent: both use the same clock
- requests a second by 8 clients at once
- exchanges a second that refold's proxy then stores from its spool, until the spool is empty
- the proxy's resident memory after a third of the exchanges, and at the end: of refold's proxy those that it stored
- the bytes of a session of 200 turns in the log, where each request repeats all earlier turns, against the new bytes

mitmproxy runs in reverse mode with a script that saves the traffic (peers/mitmproxy), LiteLLM's proxy with a callback
that does (peers/litellm); each in a separate environment. LiteLLM is pinned to a release before those reported
as compromised in 2026. It writes streams anew, so events have no time of sending, and it is measured by fewer requests.

A proxy, the client and the provider share the machine's cores. So the direct connection's requests a second are what a
proxy without any cost of its own could not reach either: it would have to receive and send everything twice.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
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

from page import titled_table
from peers.building import built_python
from rich.console import Console

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
    """The figures of one connection kind; None if it has none. Times in milliseconds; memory in MB."""

    p50_ms: float
    p99_ms: float
    delay_ms: float | None
    per_second: float
    early_mb: float | None
    late_mb: float | None
    stored_per_second: float | None = None


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


async def measured(url: str, pid: int | None, share: int, *, has_pace: bool = True) -> ProxyFigures:
    """Measure all figures of one connection kind. has_pace: whether events arrive as they were sent."""
    path, number = "/v1/chat/completions", 0
    connection = BenchConnection(url)
    await connection.open()
    took = []
    for number in range(50 + TIMED // share):
        first_s, _ = await connection.ask(path, request_body(number))
        took.append(first_s * 1000)
    delays = []
    for each in range(max(2, PACED // share) if has_pace else 0):
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
            if done == total // 3 and pid is not None:
                early = resident_mb(pid)
        connection.close()

    await asyncio.gather(*(client(own) for own in range(CLIENTS)))
    rate = done / (time.perf_counter() - began)
    cuts = quantiles(took[50:], n=100)
    late = None if pid is None else resident_mb(pid)
    return ProxyFigures(cuts[49], cuts[98], quantiles(delays, n=100)[49] if delays else None, rate, early, late)


def stored_all(figures: ProxyFigures, pid: int, spool: Path) -> ProxyFigures:
    """Wait until a proxy has stored its spool, and add how fast, and its memory meanwhile."""
    waiting, early, began = _waiting_in(spool), None, time.perf_counter()
    left = waiting
    while left:
        time.sleep(0.2)
        left = _waiting_in(spool)
        if early is None and left <= waiting * 2 // 3:
            early = resident_mb(pid)
    rate = waiting / (time.perf_counter() - began)
    return figures._replace(early_mb=early, late_mb=resident_mb(pid), stored_per_second=rate)


def _waiting_in(spool: Path) -> int:
    return sum(1 for each in spool.rglob("*") if each.suffix in (".whole", ".open"))


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
    port = free_port()
    run = "import sys; from mitmproxy.tools.main import mitmdump; sys.exit(mitmdump())"
    options = ["--quiet", "--mode", f"reverse:{upstream}", "--listen-host", "127.0.0.1", "--listen-port", str(port),
               "-s", str(HERE / "peers" / "mitmproxy" / "save.py")]  # fmt: skip
    with _peer("mitmproxy", run, options, port, {"SAVED": str(folder / "saved.jsonl")}) as found:
        yield found


@contextmanager
def litellm(upstream: str, folder: Path) -> Iterator[tuple[str, int]]:
    """Run LiteLLM's proxy. Raises ServerMissing if it cannot be installed."""
    port = free_port()
    model = {"model": "openai/bench", "api_base": f"{upstream}/v1", "api_key": "none"}
    config = {
        "model_list": [{"model_name": "bench", "litellm_params": model}],
        "litellm_settings": {"callbacks": "save.saving", "telemetry": False},
    }
    (folder / "litellm.yaml").write_text(json.dumps(config))  # JSON is YAML; the callback is found next to it
    shutil.copy(HERE / "peers" / "litellm" / "save.py", folder)
    run = "import sys; from litellm import run_server; sys.exit(run_server())"
    options = ["--config", str(folder / "litellm.yaml"), "--host", "127.0.0.1", "--port", str(port)]
    environment = {"SAVED": str(folder / "litellm.jsonl"), "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_DOCS": "True"}
    with _peer("litellm", run, options, port, environment) as found:
        yield found


def free_port() -> int:
    """Return a port that is free at the moment."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@contextmanager
def _peer(
    name: str, run: str, options: list[str], port: int, environment: dict[str, str]
) -> Iterator[tuple[str, int]]:  # fmt: skip
    """Run the Python code of a peer until the end of the block. Raises ServerMissing if it does not start."""
    python = built_python(HERE / "peers" / name)
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([str(python), "-c", run, *options], env={**os.environ, **environment}, stdout=quiet)
    try:
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise ServerMissing(f"{name} did not start") from None
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
            figures = asyncio.run(measured(url, pid, share))
            found["refold proxy"] = stored_all(figures, pid, Path(place) / "spool")
        for name, peer, part, has_pace in (("mitmproxy", mitmproxy, 1, True), ("LiteLLM", litellm, 10, False)):
            try:
                with console.status(name), peer(upstream, Path(place)) as (url, pid):
                    found[f"{name}, saving"] = asyncio.run(measured(url, pid, share * part, has_pace=has_pace))
            except ServerMissing as missing:
                console.print(f"{name}: {missing}")
        with console.status("a session"), tempfile.TemporaryDirectory(dir=folder) as own:
            new, stored = stored_session(upstream, Path(own), max(10, SESSION_TURNS // share))
    goals = "goals: first byte +1.5 ms at p50, +8 ms at p99; a paced event +0.3 ms; 700 a second"
    columns = ("by", "first byte p50, ms", "added", "p99, ms", "added", "paced event p50, ms", "added",
               f"a second, {CLIENTS} clients", "stored a second", "MB at a third", "MB at the end")  # fmt: skip
    table = titled_table(f"Capture at {REQUEST_BYTES // 1000} KB requests ({goals})", *columns)
    direct = found["direct"]
    for name, each in found.items():
        pairs = [(each.p50_ms, direct.p50_ms), (each.p99_ms, direct.p99_ms), (each.delay_ms, direct.delay_ms)]
        cells = [text for own, bare in pairs for text in _with_added(own, bare)]
        rest = (each.stored_per_second, each.early_mb, each.late_mb)
        table.add_row(name, *cells, f"{each.per_second:,.0f}", *("-" if one is None else f"{one:,.0f}" for one in rest))
    console.print(table)
    console.print(f"A session of {max(10, SESSION_TURNS // share)} turns: {new:,} new bytes, {stored:,} in the log, "
                  f"{stored / new:.2f} times (goal: 3)")  # fmt: skip


def _with_added(own_ms: float | None, direct_ms: float | None) -> tuple[str, str]:
    if own_ms is None or direct_ms is None:
        return "-", "-"
    return f"{own_ms:.2f}", f"{own_ms - direct_ms:.2f}"
