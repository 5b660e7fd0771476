"""Faults around a proxy: it is killed, the log is unavailable, the spool is full, a provider's connection breaks.

What the agent got is in the log, or is counted as missed. The agent itself notices nothing.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest

from refold.agents.capture.exchange import request_of
from refold.agents.capture.spool import Spool
from refold.agents.log import AgentLog
from refold.explorer.cli.record.proxy import print_stored
from refold.streams.open import process_context
from refold_tests.captures import capturing, log_of
from refold_tests.command import started
from refold_tests.model_server import WORDS, ModelServer, Reply, model_server

pytestmark = pytest.mark.outside

WAIT_S = 120.0
ROUNDS = int(os.environ.get("REFOLD_FAULT_ROUNDS", "6"))


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


def until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def post(url: str, body: Any, path: str = "/v1/chat/completions", headers: dict[str, str] | None = None) -> bytes:
    """Send a request as a plain client does; return the response's body."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT_S)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        data = response.read()
        assert response.status == 200, data
        return data
    finally:
        connection.close()


def asking(text: str, **more: Any) -> Any:
    return {"model": "gpt-x", "messages": [{"role": "user", "content": text}], **more}


HOLDING = "import sys, refold; log = refold.open(sys.argv[1]); print('held', flush=True); sys.stdin.read(); log.close()"


@contextmanager
def held(url: str) -> Iterator[None]:
    """Let another process own the log, and not answer."""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", HOLDING, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"held\n"
        owner.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            owner.send_signal(signal.SIGCONT)
            owner.stdin.close()
            assert owner.wait(WAIT_S) == 0


class ProxyProcess:
    """`refold proxy` in a separate process."""

    started: ClassVar[list[ProxyProcess]] = []

    def __init__(self, folder: Path, upstream: str, *more: str) -> None:
        self.process = started(
            "proxy", "--upstream", upstream, "--listen", "127.0.0.1:0", "--spool", folder / "spool",
            "--log", f"file:{folder / 'log'}", *more, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.started.append(self)
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        found = re.search(r"http://[\d.:]+", said)
        assert found is not None, said + (self.process.stderr.read() if self.process.stderr else "")
        self.url = found[0]

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def end(self) -> str:
        """End it by SIGTERM; return what it wrote to standard error."""
        self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=WAIT_S)
        assert self.process.returncode == 0, said
        return str(said)


@pytest.fixture(autouse=True)
def _no_proxy_is_left() -> Iterator[None]:
    """A test that fails leaves no process."""
    yield
    while ProxyProcess.started:
        ProxyProcess.started.pop().kill()


def titles(log: AgentLog) -> list[str]:
    return [each.title or "" for each in log.runs()]


def test_proxy_killed_in_a_stream_keeps_everything_the_agent_received(server: ModelServer, tmp_path: Path) -> None:
    server.hold, server.held = threading.Event(), threading.Event()
    got: list[bytes] = []
    proxy = ProxyProcess(tmp_path, server.url)
    try:
        parts = urlsplit(proxy.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT_S)
        connection.request("POST", "/v1/chat/completions", json.dumps(asking("a long story", stream=True)))
        response = connection.getresponse()
        while b"".join(got).count(b"data:") < 4:
            got.append(response.read1(65536))
        proxy.kill()
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            response.read()
        response.close()
        connection.close()
    finally:
        proxy.kill()
        server.hold.set()
        server.hold = None
    again = ProxyProcess(tmp_path, server.url)
    post(again.url, asking("another"))
    said = again.end()
    assert "2 exchanges in 2 runs" in said, said
    with log_of(tmp_path) as log:
        (run,) = (row.run for row in log.runs() if row.title == "a long story")
        (step,) = log.recording(run).steps
    answer = step.calls[0].answer
    assert "".join(text for _, text in answer["chunks"]).encode() == b"".join(got)
    assert (answer["end"], answer["error"]["class"]) == ("broken", "ProxyEnded")
    assert list((tmp_path / "spool").iterdir()) == []


@pytest.mark.faults
def test_proxy_killed_at_any_moment_loses_nothing(server: ModelServer, tmp_path: Path) -> None:
    """Two agents have conversations. Each answer that one of them got is in the log once, and so is its session.

    If an answer was just complete when the proxy was killed, the log has all its bytes, but not its end.
    """
    seed = random.randrange(1 << 30)
    print("seed", seed)
    dice = random.Random(seed)
    server.mind = lambda body: Reply([f"reply to {len(body['messages'])} of {body['messages'][0]['content']}"])
    got: dict[str, int] = {}
    try:
        for number in range(ROUNDS):
            proxy = ProxyProcess(tmp_path, server.url)
            agents = [
                threading.Thread(target=converse, args=(proxy.url, f"agent {number}.{each}", got), daemon=True)
                for each in range(2)
            ]
            for each in agents:
                each.start()
            until(partial(was_answered, f"agent {number}.", got), "nobody was answered")
            time.sleep(dice.random() * 0.5)
            proxy.kill()
            for each in agents:
                each.join(WAIT_S)
        ProxyProcess(tmp_path, server.url).end()
        # The process that took the spool over stores all of it before it ends.
        with log_of(tmp_path) as log:
            runs = {row.title: log.recording(row.run) for row in log.runs()}
            assert len(titles(log)) == len(runs), f"seed {seed}: a session became two runs"
            assert {row.outcome for row in log.runs()} <= {"succeeded", "unknown"}, f"seed {seed}: a run goes on"
    finally:
        server.mind = lambda body: Reply(WORDS)
    for name, answers in got.items():
        replies = [
            call.answer["chunks"][0][1]
            for step in runs[name].steps for call in step.calls
            if call.answer is not None and call.answer["chunks"]
        ]  # fmt: skip
        expected = [f"reply to {2 * at + 1} of {name}" for at in range(answers)]
        found = [json.loads(each)["choices"][0]["message"]["content"] for each in replies]
        assert found[:answers] == expected, f"seed {seed}"
        assert len(found) <= answers + 1, f"seed {seed}: the one that was under way is all that there may be besides"


def was_answered(begin: str, got: dict[str, int]) -> bool:
    return any(name.startswith(begin) for name in list(got))


def converse(url: str, name: str, got: dict[str, int]) -> None:
    messages = [{"role": "user", "content": name}]
    with contextlib.suppress(OSError, http.client.HTTPException):
        while True:
            answer = json.loads(post(url, {"model": "gpt-x", "messages": messages}))
            got[name] = got.get(name, 0) + 1
            messages += [answer["choices"][0]["message"], {"role": "user", "content": "go on"}]


def test_unavailable_log_blocks_no_request(server: ModelServer, tmp_path: Path) -> None:
    """The log's owner is another process, which is suspended before and in the middle of a session."""
    url = f"file:{tmp_path / 'log'}"
    messages: list[Any] = [{"role": "user", "content": "are you there?"}]
    with capturing(tmp_path, server.url) as captured:
        with held(url):
            for _ in range(2):
                answer = json.loads(post(captured.url, {"model": "gpt-x", "messages": messages}))
                messages += [answer["choices"][0]["message"], {"role": "user", "content": "still?"}]
            until(lambda: captured.said, "nothing was said of it")
            assert "the log cannot be written, and what is captured waits in" in captured.said[0]
        until(lambda: captured.said[-1] == "the log is back", "the log did not come back")
        assert len(captured.said) == 2, captured.said
        answer = json.loads(post(captured.url, {"model": "gpt-x", "messages": messages}))
        stored = captured.close()
    assert (stored.exchanges, stored.missed, stored.waiting) == (3, 0, 0)
    with log_of(tmp_path) as log:
        (row,) = log.runs()
        assert (row.steps, row.title) == (3, "are you there?")


def test_exchanges_beyond_the_spool_limit_are_forwarded_and_counted(server: ModelServer, tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'log'}"
    with capturing(tmp_path, server.url, spool_bytes_max=2000) as captured:
        with held(url):
            for number in range(8):
                post(captured.url, asking(f"question {number}"))
        stored = captured.close()
    assert stored.exchanges >= 1
    assert stored.missed >= 1
    assert stored.exchanges + stored.missed == 8
    counted = f"{stored.missed} exchange was" if stored.missed == 1 else f"{stored.missed} exchanges were"
    assert any(f"{counted} not kept: the spool" in each for each in captured.said), captured.said
    with log_of(tmp_path) as log:
        (gap,) = log.runs(error="CaptureGap")
        failure = log.recording(gap.run).failure
        assert failure is not None
        assert failure.message.startswith(f"{counted} not kept: the spool")
        assert len(log.runs()) == stored.exchanges + 1


def zeros(data: bytes) -> bytes:
    """Return the bytes that a power cut leaves in a file whose length was synced and whose content was not."""
    return bytes(len(data))


@pytest.mark.parametrize(
    "damaged",
    [zeros, lambda data: data[:-20] + bytes(20), lambda data: bytes(4) + data, lambda data: b"\xff\xff\xff\xf0" + data],
    ids=["zeros", "zeros at its end", "an empty frame", "a frame without an end"],
)
def test_damaged_spool_file_is_quarantined_and_stops_no_other(
    damaged: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    gone = Spool(tmp_path / "spool", process_context())
    for number in (1, 2, 3):
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": f"question {number}"}]})
        request = request_of("POST", "https://provider.example/v1/chat/completions", "application/json", body.encode())
        spooling = gone.begin("chat", request, number)
        assert spooling is not None
        spooling.head([], "HTTP/1.1", 200, [["content-type", "application/json"]], 1)
        spooling.add(b'{"choices":[{"message":{"role":"assistant","content":"yes"}}]}', 2)
        spooling.end("whole", 3)
    gone.close()
    second = gone.folder / "2.whole"
    second.write_bytes(damaged(second.read_bytes()))
    with capturing(tmp_path, "http://127.0.0.1:9") as captured:
        stored = captured.close()
    is_cut = damaged(b"")[:1] == b"\xff"  # as after a kill: the exchange has no end
    assert (stored.exchanges, stored.missed, stored.waiting) == (2, 0 if is_cut else 1, 0)
    assert (gone.folder / "2.refused").exists() is not is_cut
    with log_of(tmp_path) as log:
        assert {row.title for row in log.runs()} >= {"question 1", "question 3"}


def test_unreachable_upstream_is_a_502_and_a_failed_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is named at the end as well: many programs do not show the body of an error."""
    with (
        capturing(tmp_path, "http://127.0.0.1:9") as captured,
        pytest.raises(AssertionError, match=r"refold: the proxy got no response from 127.0.0.1"),
    ):
        post(captured.url, asking("hello?"))
    with log_of(tmp_path) as log:
        (row,) = log.runs(error="ClientConnectorError")
        (step,) = log.recording(row.run).steps
    assert (step.outcome, row.outcome) == ("failed", "unknown")
    assert captured.stored is not None
    print_stored(captured.stored, "the log")
    assert (
        "refold: 1 exchange without a response: the proxy got no response from 127.0.0.1: ClientConnectorError: "
        in capsys.readouterr().err
    )


def test_silent_provider_times_out_when_configured(server: ModelServer, tmp_path: Path) -> None:
    server.hold = threading.Event()
    try:
        with capturing(tmp_path, server.url, silence_s=0.5) as captured, pytest.raises(http.client.IncompleteRead):
            post(captured.url, asking("slowly", stream=True))
    finally:
        server.hold.set()
        server.hold = None
    with log_of(tmp_path) as log:
        (row,) = log.runs(error="Timeout")
        (step,) = log.recording(row.run).steps
    assert step.calls[0].answer["end"] == "broken"


PLANTED = {
    "header": "planted-in-a-header-1", "query": "planted-in-a-query-2", "body": "planted-in-a-body-3",
    "nested": "planted-in-a-nested-text-4", "bearer": "planted-in-bearer-5",
}  # fmt: skip


def test_credentials_reach_the_provider_but_no_disk(server: ModelServer, tmp_path: Path) -> None:
    server.reset()
    server.mind = lambda body: Reply([f"your key is {PLANTED['bearer']}, and {PLANTED['query']}"])
    body = asking("hi", api_key=PLANTED["body"], metadata={"args": json.dumps({"password": PLANTED["nested"]})})
    path = f"/v1/chat/completions?api_key={PLANTED['query']}&version=2"
    headers = {"Authorization": f"Bearer {PLANTED['bearer']}", "X-Api-Key": PLANTED["header"]}
    url = f"file:{tmp_path / 'log'}"
    try:
        with capturing(tmp_path, server.url) as captured, held(url):  # so that everything is in the spool first
            for more in ({}, {"stream": True}):
                found = post(captured.url, {**body, **more}, path, headers)
                assert PLANTED["bearer"].encode() in found
            spooled = clean(tmp_path / "spool")
            assert spooled > 1000
    finally:
        server.mind = lambda body: Reply(WORDS)
    assert clean(tmp_path / "log") > 1000
    asked_path, asked_headers, asked_body = server.requests[0]
    assert asked_path == path
    assert (asked_headers["X-Api-Key"], asked_headers["Authorization"]) == (
        headers["X-Api-Key"],
        headers["Authorization"],
    )
    assert asked_body == body
    with log_of(tmp_path) as log:
        request = log.recording(log.runs()[0].run).steps[0].calls[0].asked.request
    assert request["url"].endswith("/v1/chat/completions?api_key=HIDDEN&version=2")
    assert json.loads(request["body"])["api_key"] == "HIDDEN"


def clean(folder: Path) -> int:
    """Check that no file of the folder holds a planted secret; return their total size in bytes."""
    size = 0
    for each in folder.rglob("*"):
        if each.is_file():
            data = each.read_bytes()
            size += len(data)
            for secret in PLANTED.values():
                assert secret.encode() not in data, each
    return size


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_a_stream(tmp_path: Path) -> None:
    from refold_tests.long_stream import long_stream

    with long_stream() as (url, more):
        proxy = ProxyProcess(tmp_path, url)
        try:
            parts = urlsplit(proxy.url)
            connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT_S)
            connection.request("POST", "/v1/unknown", "{}")
            response = connection.getresponse()
            sizes = []
            for _ in range(2):
                more.release(400)
                for _ in range(400):
                    read = 0
                    while read < 1 << 16:
                        read += len(response.read1(1 << 16))
                sizes.append(resident_kb(proxy.process.pid))
            response.close()
            connection.close()
        finally:
            proxy.kill()
    assert sizes[1] - sizes[0] < 12_000, "another 26 MB of the stream had passed"


def resident_kb(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1])
