"""`refold receive` as a process, and requests that are sent to it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from refold.agents.adapters.otlp.requests import JSON
from refold.agents.log import AgentLog, open_log
from refold.avro.errors import StorageError
from refold_tests.command import started
from refold_tests.forked import Forked

WAIT_S = 120
START = 1_790_000_000_000_000_000


class Answer(NamedTuple):
    status: int
    body: bytes
    retry_after: str | None


OK = Answer(200, b"{}", None)
"""All is recorded."""


def post(url: str, body: bytes, content_type: str = JSON, path: str = "/v1/traces", method: str = "POST",
         **headers: str) -> Answer:  # fmt: skip
    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT_S)) as connection:
        given = {name.replace("_", "-"): each for name, each in headers.items()}
        connection.request(method, path, body, {"Content-Type": content_type, **given})
        response = connection.getresponse()
        return Answer(response.status, response.read(), response.getheader("Retry-After"))


def span(trace: int, number: int) -> dict[str, object]:
    """Return a span of a call of a model."""
    values = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
    return {
        "traceId": f"{trace:032x}", "spanId": f"{number:016x}", "name": f"chat {number}",
        "startTimeUnixNano": str(START + number), "endTimeUnixNano": str(START + number + 5),
        "attributes": [{"key": key, "value": {"stringValue": each}} for key, each in values.items()],
    }  # fmt: skip


def request(*spans: dict[str, object]) -> bytes:
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}).encode()


class Receiving:
    """`refold receive` in a process of its own."""

    def __init__(self, log: str, *options: str, command: Sequence[str] = ()) -> None:
        """command: what runs it in a new interpreter."""
        words = ["receive", "--listen", "127.0.0.1:0", "--log", log, *options]
        self.process: subprocess.Popen[str] | Forked
        if command:
            given = [*command, *words]
            self.process = subprocess.Popen(given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        else:
            self.process = started(*words, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline()
        found = re.search(r"http://[\d.:]+", self.said)
        assert found is not None, self.said + (self.process.stderr.read() if self.process.stderr else "")
        self.url = found[0]

    def end(self) -> str:
        self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=WAIT_S)
        assert self.process.returncode == 0, said
        return said

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


class FailingLog:
    """Opens the log of a receiver in `folder`/log. fails: whether it cannot be opened."""

    def __init__(self, folder: Path) -> None:
        self.url = f"file:{folder / 'log'}"
        self.fails = False

    def __call__(self) -> AgentLog:
        if self.fails:
            raise StorageError("the disk is gone")
        return open_log(self.url)
