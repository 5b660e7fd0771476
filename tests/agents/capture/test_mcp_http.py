"""`refold mcp-record --url`: an HTTP client notices nothing, and the answers that it got are recorded."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn
from mcp import Client
from mcp.shared.exceptions import MCPError

from refold.agents.capture.exchange import Broken
from refold.agents.capture.mcp_http import EventMessages, McpHttpTee, McpReplayServer, WholeMessages
from refold.agents.capture.mcp_playback import RecordedSession
from refold.agents.capture.mcp_wire import McpWire
from refold.agents.capture.server import LoopbackServer
from refold.agents.capture.spool import Spool
from refold.agents.journal.record import Recording
from refold.streams.open import process_context
from refold_tests import mcp_shop
from refold_tests.captures import CLOSING_S, captured_by, log_of
from refold_tests.command import environment, refold_command, started
from refold_tests.damaged_mcp import damaged
from refold_tests.mcp import asked, text_of
from refold_tests.raw_provider import Raw, RawProvider, raw_provider

pytestmark = pytest.mark.outside

SEED = int(os.environ.get("REFOLD_MCP_SEED", "20261126"))
COUNT = 300 * int(os.environ.get("REFOLD_FAULT_ROUNDS", "6"))
"""10,000 with REFOLD_FAULT_ROUNDS=34."""
JSON, EVENTS = [("Content-Type", "application/json")], [("Content-Type", "text/event-stream")]
POSTED = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
def provider() -> Iterator[RawProvider]:
    with raw_provider() as provider:
        yield provider


@pytest.fixture(scope="module")
def shop_url() -> Iterator[str]:
    """A real server of the official SDK, over streamable HTTP with streams and sessions."""
    settings = uvicorn.Config(mcp_shop.server.streamable_http_app(), port=0, log_level="error")
    serving = uvicorn.Server(settings)
    thread = threading.Thread(target=serving.run)
    thread.start()
    while not serving.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.01)
    yield f"http://127.0.0.1:{serving.servers[0].sockets[0].getsockname()[1]}/mcp"
    serving.should_exit = True
    thread.join()


@contextmanager
def tee(folder: Path, url: str) -> Iterator[str]:
    """Record into FOLDER/log; yield the URL for the client."""
    found = McpHttpTee(captured_by(folder)[0], url)
    try:
        yield found.url
    finally:
        found.close(CLOSING_S)


def recorded(folder: Path) -> Recording:
    with log_of(folder) as log:
        (row,) = log.runs()
        return log.recording(row.run)


def post(url: str, content: bytes, **headers: str) -> tuple[int, bytes]:
    """Send a message; return the status and the body as it came."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
    try:
        connection.request("POST" if content else "GET", parts.path, content or None, {**POSTED, **headers})
        response = connection.getresponse()
        try:
            return response.status, response.read()
        except http.client.IncompleteRead as error:
            return response.status, error.partial
    finally:
        connection.close()


def call(number: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call",
            "params": {"name": "price", "arguments": {"number": number}}}  # fmt: skip


def result(number: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "result": {"content": [{"type": "text", "text": f"{number} €"}]}}


def event(message: Any) -> bytes:
    return b"event: message\r\nid: 7\r\ndata: " + json.dumps(message).encode() + b"\r\n\r\n"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_session_is_recorded_and_replayed_without_its_server(
    shop_url: str, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bought = tmp_path / "bought.txt"
    monkeypatch.setattr("sys.argv", ["mcp_shop.py", str(bought)])

    async def work(client: Client) -> list[str]:
        said = [",".join(each.name for each in (await client.list_tools()).tools)]
        for tool, given in (("price", {"item": "kettle"}), ("buy", {"item": "cup", "count": 2}),
                            ("price", {"item": "tent"}), ("buy", {"item": "cup", "count": 2})):  # fmt: skip
            found = await client.call_tool(tool, given)
            said.append(f"{found.is_error} {text_of(found)}")
        return said

    with tee(tmp_path, shop_url) as url:
        said = asked(url, work, mode)
    assert said[:3] == ["price,buy", "False 1999", "False order 2 cup"]
    run = recorded(tmp_path)
    calls = [call for step in run.steps for call in step.calls if not call.asked.name.startswith("mcp:")]
    assert [(each.asked.name, each.asked.effect) for each in calls] == [
        ("price", "read"), ("buy", "write"), ("price", "read"), ("buy", "write"),
    ]  # fmt: skip
    assert (run.outcome, run.kind, calls[2].failure is None) == ("succeeded", "mcp", False)

    async def again(client: Client) -> list[str]:
        replayed = await work(client)
        with pytest.raises(MCPError, match=r"buy is not recorded so in run .*called 2 times"):
            await client.call_tool("buy", {"item": "cup", "count": 2})
        return replayed

    session = RecordedSession(run, None)
    serving = LoopbackServer(lambda: McpReplayServer(session))
    try:
        assert asked(f"{serving.url}/mcp", again, mode) == said
        assert post(f"{serving.url}/mcp", b"")[0] == 405
        assert post(f"{serving.url}/mcp", json.dumps(call(1)).encode(), Origin="https://evil.example")[0] == 403
    finally:
        serving.close()
    assert session.unrecorded == ["buy"]
    assert bought.read_text() == "2 cup\n2 cup\n"


def test_every_byte_is_forwarded_and_each_answer_finds_its_request(provider: RawProvider, tmp_path: Path) -> None:
    """Answers come whole, in streams, compressed and in pieces of any size."""
    chance = random.Random(5)
    notice = event({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progress": 1}})
    bodies = [
        (JSON, json.dumps(result(1)).encode()),
        (JSON, json.dumps([result(1), result(2)]).encode() + b"\n"),
        (EVENTS, b": begins\n\n" + notice + event(result(1)) + event(result(2))),
        ([*EVENTS, ("Content-Encoding", "gzip")], gzip.compress(notice + event(result(1)))),
        (EVENTS, event(result(1)).replace(b"\r\n", b"\n").replace(b': "2.0"', b':\ndata: "2.0"')),
    ]
    with tee(tmp_path, f"{provider.url}/mcp") as url:
        for number, (headers, body) in enumerate(bodies):
            cuts = sorted({chance.randrange(1, len(body)) for _ in range(number * 4)})
            chunks = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
            provider.answers = [Raw(headers, chunks)]
            sent = json.dumps([call(1), call(2)] if body.count(b'"result"') > 1 else call(1)).encode()
            assert post(url, sent, Authorization=f"Bearer secret-{number}") == (200, body)
            method, path, received, got = provider.requests[-1]
            assert (method, path, got) == ("POST", "/mcp", sent)
            assert received["Authorization"] == f"Bearer secret-{number}"
    run = recorded(tmp_path)
    calls = [call for step in run.steps for call in step.calls]
    assert [each.asked.request["number"] for each in calls] == [1, 1, 2, 1, 2, 1, 1]
    assert all(each.answer == result(each.asked.request["number"])["result"] for each in calls)
    assert not any(b"secret-" in each.read_bytes() for each in tmp_path.rglob("*") if each.is_file())


class Waiting(list[Raw]):
    """Answers of a provider. Before it gives the last one, it does something else."""

    def __init__(self, answers: list[Raw], work: Callable[[], object]) -> None:
        super().__init__(answers)
        self._work: Callable[[], object] | None = work

    def pop(self, index: Any = -1) -> Raw:
        work, self._work = self._work, None
        if work is not None:
            work()
        return super().pop(index)


def test_two_clients_may_use_one_id_at_once(provider: RawProvider, tmp_path: Path) -> None:
    """While the first request waits for its answer, another client's request with its id is asked and answered."""
    other = {**call(1), "params": {"name": "price", "arguments": {"number": 2}}}
    answers = [Raw(JSON, [json.dumps({**result(2), "id": 1}).encode()]), Raw(JSON, [json.dumps(result(1)).encode()])]
    with tee(tmp_path, f"{provider.url}/mcp") as url:
        provider.answers = Waiting(answers, lambda: post(url, json.dumps(other).encode()))
        assert json.loads(post(url, json.dumps(call(1)).encode())[1]) == result(1)
    calls = [call for step in recorded(tmp_path).steps for call in step.calls]
    assert {each.asked.request["number"]: each.answer for each in calls} == {
        number: result(number)["result"] for number in (1, 2)
    }


def test_missing_answers_say_why(provider: RawProvider, tmp_path: Path) -> None:
    whole = json.dumps(call(1)).encode()
    with tee(tmp_path, f"{provider.url}/mcp") as url:
        provider.answers = [Raw(JSON, [b'{"error": "no token"}'], 401), Raw(EVENTS, [event(result(1))[:-2]])]
        assert post(url, whole) == (401, b'{"error": "no token"}')
        assert post(url, whole)[0] == 200
        # In a session the answer may come in a later stream.
        provider.answers = [Raw(EVENTS, [b"id: 8\n\n"]), Raw(EVENTS, [event(result(1))])]
        assert post(url, whole, **{"Mcp-Session-Id": "a"})[0] == 200
        assert post(url, b"", **{"Mcp-Session-Id": "a", "Last-Event-ID": "8"})[0] == 200
        provider.answers = [Raw(EVENTS, [b"id: 9\n\n"]), Raw(EVENTS, [event(result(1))])]
        assert post(url, whole, **{"Mcp-Session-Id": "b"})[0] == 200
        assert post(url, b"", **{"Mcp-Session-Id": "c"})[0] == 200
    failures = [call.failure for step in recorded(tmp_path).steps for call in step.calls]
    assert [None if each is None else each.exception for each in failures] == [
        "HttpStatus", "AnswerLost", None, "TeeEnded",
    ]  # fmt: skip
    assert failures[0] is not None
    assert failures[0].message == "the server answered with HTTP status 401"


def test_damaged_messages_are_passed_over(tmp_path: Path) -> None:
    """In either direction, over both transports: no message raises, and what is whole is captured."""
    chance, runtime = random.Random(SEED), process_context()
    spool = Spool(tmp_path, runtime)
    wire = McpWire(spool, runtime.now_micros)
    sent = said = 0
    for number in range(COUNT):
        message = damaged(chance)
        answer = message.replace(b'"method"', b'"result"') if chance.random() < 0.7 else message
        if chance.random() < 0.5:
            wire.sent(message + b"\n")
            wire.said(answer + b"\n")
        else:
            for parser, body in ((WholeMessages(), answer), (EventMessages(), b"data: %b\n\n" % answer)):
                cut = chance.randrange(len(body) + 1)
                for found in (*parser.feed(body[:cut]), *parser.feed(body[cut:])):
                    pending = wire.asked(found, "a")
                    wire.answered(found, "a")
                    wire.lost([] if pending is None else [pending], Broken("Lost", "x"))
        if number % 100 == 0:
            wire.sent(json.dumps(call(number)).encode() + b"\n")
            wire.said(json.dumps(result(number)).encode() + b"\n")
            sent += 1
    wire.end()
    for path in spool.whole():
        exchange: Any = spool.read(path)
        answered = exchange.answer is not None and exchange.answer["end"] == "whole"
        said += answered and set(exchange.request["asked"]) == {"number"}
    spool.close()
    assert said == sent


def test_pages_of_web_sites_are_refused(provider: RawProvider, tmp_path: Path) -> None:
    asked = len(provider.requests)
    with tee(tmp_path, f"{provider.url}/mcp") as url:
        for wrong in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Host": "evil.example"}):
            assert post(url, json.dumps(call(1)).encode(), **wrong)[0] == 403
    assert len(provider.requests) == asked


def test_server_that_is_away_is_a_502_and_recorded(tmp_path: Path) -> None:
    with tee(tmp_path, "http://127.0.0.1:9/mcp") as url:
        status, said = post(url, json.dumps(call(1)).encode())
    assert status == 502
    assert b"got no response from 127.0.0.1" in said
    (step,) = recorded(tmp_path).steps
    assert step.calls[0].failure is not None


def test_answered_calls_are_recorded_even_if_the_tee_is_killed(provider: RawProvider, tmp_path: Path) -> None:
    """The first tee is killed after an answer, the second ends; its run has the answers of both."""
    words = ["mcp-record", "--url", f"{provider.url}/mcp", "--listen", "127.0.0.1:0", "--spool", tmp_path / "spool"]
    statuses = []
    for number in (1, 2):
        process = started(
            *words, env=environment(f"file:{tmp_path / 'log'}"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=False,
        )  # fmt: skip
        assert process.stdout is not None
        url = process.stdout.readline().split()[2].decode()
        provider.answers = [Raw(EVENTS, [event(result(number))])]
        assert post(url, json.dumps(call(number)).encode())[0] == 200
        process.kill() if number == 1 else process.terminate()
        process.communicate(timeout=240)
        statuses.append(process.returncode)
    assert statuses == [-signal.SIGKILL, 0]
    with log_of(tmp_path) as log:
        runs = [log.recording(row.run) for row in log.runs()]
    calls = [call for run in runs for step in run.steps for call in step.calls]
    assert sorted(call.asked.request["number"] for call in calls) == [1, 2]
    assert [call.failure for call in calls] == [None, None]


def test_invalid_options_name_the_valid_ones(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'log'}"
    for words, said in (
        (["--url", "http://127.0.0.1:9/mcp", "--", "cat"], "leave the server out"),
        (["--url", "ftp://x/mcp"], "an upstream is http://"), (["--listen", "127.0.0.1:0", "--", "cat"], "--url"),
        (["--url", "http://127.0.0.1:9/mcp", "--listen", "0.0.0.0:0"], "loopback"),
    ):  # fmt: skip
        done = refold_command("mcp-record", *words, log=url)
        assert done.status == 2
        assert said in done.err
