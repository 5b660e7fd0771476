"""`refold receive` opens no socket but those that it is told to listen on, and its log's."""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest

from refold.agents.adapters.otlp.signals import TRACES
from refold_tests.otlp_receiving import WAIT_S, Receiving, post, request, span
from refold_tests.otlp_requests import as_protobuf
from refold_tests.sockets import sockets_of

pytestmark = pytest.mark.outside

# Writes each address that Python's sockets are bound or connected to, or look up, to a file; then the command runs.
WATCHED = """
import sys
import os
out = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def watch(event, args):
    if event in ("socket.bind", "socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"):
        os.write(out, f"{event} {args[1 if event in ('socket.bind', 'socket.connect') else 0]!r}\\n".encode())
sys.addaudithook(watch)
del sys.argv[1]
from refold.explorer.cli.main import main
main()
"""


def test_process_opens_the_named_ports_alone_and_serves_metrics_there(tmp_path: Path) -> None:
    """Python's sockets are watched, and those of gRPC's library by the kernel's tables."""
    watched = tmp_path / "sockets"
    receiving = Receiving(
        f"file:{tmp_path / 'log'}", "--listen-grpc", "127.0.0.1:0", "--metrics-port", "0",
        command=[sys.executable, "-P", "-c", WATCHED, str(watched)],
    )  # fmt: skip
    try:
        assert receiving.process.stderr is not None
        metrics = receiving.process.stderr.readline().split()[-1]
        over_grpc = receiving.said.partition("gRPC at ")[2].partition(",")[0]
        assert post(receiving.url, request(span(1, 1))).status == 200
        with grpc.insecure_channel(over_grpc) as channel:
            call: Any = channel.unary_unary(f"/{TRACES.service}/Export")
            assert call(as_protobuf(request(span(1, 2))), timeout=WAIT_S) == b""
        with urllib.request.urlopen(metrics, timeout=WAIT_S) as answer:
            page = answer.read().decode()
        with urllib.request.urlopen(metrics.replace("/metrics", "/health"), timeout=WAIT_S) as answer:
            assert json.load(answer) == {"healthy": True}
        own = sockets_of(receiving.process.pid)
    finally:
        receiving.end()
    assert 'refold_receive_items_total{log="log",signal="spans"} 2.0' in page.splitlines()
    ports = {urlsplit(each).port for each in (receiving.url, metrics, f"http://{over_grpc}")}
    assert len(ports) == 3
    assert own.listening == {("127.0.0.1", port) for port in ports}
    assert own.outgoing == set()
    lines = watched.read_text().splitlines()
    assert lines.count("socket.bind ('127.0.0.1', 0)") == 2
    of_log = f"socket.bind '{tmp_path / 'log' / 'owner.sock'}'"  # for other processes that record into the log
    named = ("socket.bind ('127.0.0.1', 0)", "socket.getaddrinfo '127.0.0.1'", of_log)
    assert not [line for line in lines if line not in named]
