"""The bytes on both sides of the proxy, with a provider that reports what it received; a real session is included."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import random
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from refold.agents.capture.playback import RecordedUpstream
from refold.agents.capture.server import LoopbackServer
from refold.agents.capture.turns import reply_of, turn_of
from refold.agents.journal.chain import broken
from refold.agents.journal.record import Recording
from refold_tests.captures import capturing, log_of
from refold_tests.corpora import members
from refold_tests.raw_provider import Raw, RawProvider, raw_provider

pytestmark = pytest.mark.outside

EVENTS = [("Content-Type", "text/event-stream")]


@pytest.fixture(scope="module")
def provider() -> Iterator[RawProvider]:
    with raw_provider() as provider:
        yield provider


def send_request(
    url: str, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, list[tuple[str, str]], bytes]:
    """Send a request; return status, headers and body unchanged."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
    try:
        connection.request(method, path, body, headers or {}, encode_chunked=not isinstance(body, bytes | None))
        response = connection.getresponse()
        return response.status, response.getheaders(), response.read()
    finally:
        connection.close()


def recordings(folder: Path) -> list[Recording]:
    with log_of(folder) as log:
        return [log.recording(row.run) for row in reversed(log.runs())]


def test_any_method_path_and_body_are_forwarded_unchanged(provider: RawProvider, tmp_path: Path) -> None:
    requests: list[tuple[str, str, bytes | None, dict[str, str]]] = [
        ("GET", "/v1/models?limit=3&x=%2F%20a", None, {"Accept": "application/json"}),
        ("HEAD", "/", None, {}),
        ("POST", "/any/path", bytes(range(256)) * 500, {"Content-Type": "application/octet-stream"}),
        ("DELETE", "/v1/files/f%2F1", None, {}),
        ("POST", "/v1/embeddings", gzip.compress(b'{"input": "a"}'),
         {"Content-Type": "application/json", "Content-Encoding": "gzip"}),
    ]  # fmt: skip
    provider.requests.clear()
    provider.answers = [
        Raw([("Content-Type", "application/json"), ("X-Twice", "1"), ("X-Twice", "2")], [b"{", b"}"]),
        Raw([], []),
        Raw([("Content-Type", "image/png")], [b"\xff\xfe", bytes(70_000)], 418),
        Raw([], [], 204),
        Raw([("Content-Type", "application/json"), ("Content-Encoding", "gzip")], [gzip.compress(b'{"data": []}')]),
    ]
    answers = list(provider.answers)
    with capturing(tmp_path, provider.url) as captured:
        found = [send_request(captured.url, method, path, body, headers) for method, path, body, headers in requests]
    for (method, path, body, headers), seen in zip(requests, provider.requests, strict=True):
        assert seen[:2] == (method, path)
        assert seen[3] == (body or b"")
        assert set(headers.items()) <= set(seen[2].items())
    for given, (status, got, answered), (method, *_) in zip(answers, found, requests, strict=True):
        assert status == given.status
        assert answered == (b"" if method == "HEAD" else b"".join(given.chunks))
        assert set(given.headers) <= set(got)
        assert [value for name, value in got if name == "X-Twice"] == [
            value for name, value in given.headers if name == "X-Twice"
        ]
    (run,) = recordings(tmp_path)
    assert run.title == "calls that are no turn of a conversation"
    assert [step.name.split(" ")[0] for step in run.steps] == ["GET", "HEAD", "POST", "DELETE", "POST"]
    assert run.steps[4].calls[0].asked.request["body"] == '{"input": "a"}'
    assert [text for _, text in run.steps[4].calls[0].answer["chunks"]] == ['{"data": []}']


@pytest.mark.parametrize(
    ("last", "end"),
    [
        (b"data: [DONE]\n\n", "whole"),
        (b"event: message_stop\r\ndata: {}\r\n\r\n", "whole"),
        (b"event: response.completed\ndata: {}\n\n", "whole"),
        (b"event: response.completed\ndata: {", "left"),
        (b'data: {"text": "data: [DONE]"}\n\n', "left"),
    ],
    ids=["chat", "anthropic", "responses", "a part of it", "the text of it"],
)
def test_agent_that_disconnects_after_the_last_event_received_everything(tmp_path: Path, last: bytes, end: str) -> None:
    """The provider has not ended the body yet, and the last event arrives in pieces."""
    ended = threading.Event()
    pieces = [b"data: {}\n\n", *(last[at : at + 5] for at in range(0, len(last), 5))]
    with raw_provider() as provider, capturing(tmp_path, provider.url) as captured:
        provider.before_end = lambda: ended.wait(120)
        provider.answers = [Raw(EVENTS, pieces)]
        parts = urlsplit(captured.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
        connection.request("POST", "/v1/x", b"{}")
        response = connection.getresponse()
        assert response.read(sum(map(len, pieces))) == b"".join(pieces)
        response.close()
        connection.close()
        deadline = time.monotonic() + 120
        while list((tmp_path / "spool").rglob("*.open")):
            assert time.monotonic() < deadline, "the proxy did not see that the agent hung up"
            time.sleep(0.02)
        ended.set()
    (run,) = recordings(tmp_path)
    assert run.steps[0].calls[0].answer["end"] == end


@pytest.mark.parametrize("has_uvloop", [True, False], ids=["uvloop", "asyncio"])
def test_chunk_boundaries_are_kept_live_and_in_a_replay(
    provider: RawProvider, tmp_path: Path, has_uvloop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test blank lines, and pieces that end within a character."""
    if not has_uvloop:
        monkeypatch.setitem(sys.modules, "uvloop", None)
    parts = [b'data: {"a": "\xc3', b'\xbc"}\n\n', b"\n\n: ping\n\n", b"data: [DONE]\n\n"]
    provider.answers = [Raw(EVENTS, parts)]
    with capturing(tmp_path, provider.url) as captured:
        assert wire(captured.url, "/v1/x") == parts
    (run,) = recordings(tmp_path)
    serving = LoopbackServer(lambda: RecordedUpstream([run]))
    try:
        assert wire(serving.url, "/v1/x") == parts
    finally:
        serving.close()


def wire(url: str, path: str) -> list[bytes]:
    """Return the HTTP chunks in which a body arrives."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
    try:
        connection.request("POST", path, b"{}")
        response = connection.getresponse()
        assert response.fp is not None
        found = []
        while size := int(response.fp.readline(), 16):
            found.append(response.fp.read(size))
            assert response.fp.readline() == b"\r\n"
        return found
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("headers", "status", "said"),
    [
        ({"Host": "rebound.example"}, 403, "name this server by an address on loopback"),
        ({"Origin": "https://site.example"}, 403, "pages of web sites may not ask it"),
        ({"Host": "127.0.0.1, 127.0.0.1"}, 400, "send one header Host"),
    ],
    ids=["host", "origin", "two hosts"],
)
def test_requests_that_are_not_forwarded(
    provider: RawProvider, tmp_path: Path, headers: dict[str, str], status: int, said: str
) -> None:
    provider.requests.clear()
    with capturing(tmp_path, provider.url) as captured:
        found, _, body = send_request(captured.url, "GET", "/v1/responses", None, headers)
    assert (found, provider.requests) == (status, [])
    assert said in json.loads(body)["error"]["message"]


def test_real_claude_code_session_is_one_run(provider: RawProvider, tmp_path: Path, turns_file: Path) -> None:
    """papercomputeco/tapes, MIT: nine turns as they were sent, including gzip. The first is another session."""
    files = members(turns_file, "recordings")
    turns = sorted({name.partition("/")[0] for name in files if "/" in name})
    assert len(turns) == 9
    with capturing(tmp_path, provider.url) as captured:
        for turn in turns:
            request, meta = (json.loads(files[f"{turn}/{part}.json"]) for part in ("request", "meta"))
            body = files[f"{turn}/response.sse"]
            pieces = [body[at : at + 700] for at in range(0, len(body), 700)]
            given = [(name, value) for name, value in meta["response_headers"]
                     if name not in ("transfer-encoding", "connection", "content-length")]  # fmt: skip
            provider.answers = [Raw(given, pieces, meta["status"])]
            sent = base64.b64decode(request["body_b64"])
            url = urlsplit(request["url"])
            target = f"{url.path.removeprefix('/local-gw/anthropic')}?{url.query}"
            headers = {name: value for name, value in request["headers"] if name != "content-length"}
            status, _, got = send_request(captured.url, "POST", target, sent, headers)
            assert (status, got) == (meta["status"], body)
            assert provider.requests[-1][3] == sent
    first, session = recordings(tmp_path)
    assert (len(first.steps), len(session.steps)) == (1, 8)
    for recording, bodies in ((first, turns[:1]), (session, turns[1:])):
        for step, turn in zip(recording.steps, bodies, strict=True):
            answer = step.calls[0].answer
            plain = gzip.decompress(files[f"{turn}/response.sse"])
            assert "".join(text for _, text in answer["chunks"]).encode() == plain
            assert "encoding" not in answer
    tools = [[call for call in step.calls if call.asked.kind == "tool"] for step in session.steps]
    last = turn_of(session.steps[-1].calls[0].asked.request)
    assert last is not None
    results = [block for each in last.messages if isinstance(each["content"], list) for block in each["content"]
               if block["type"] == "tool_result"]  # fmt: skip
    answered = [call for calls in tools for call in calls if call.failure is None or call.failure.exception == "Error"]
    assert len(answered) == len(results) > 10
    assert sum(call.failure is not None for call in answered) == sum(bool(each.get("is_error")) for each in results)


def test_long_session_is_stored_in_at_most_three_times_its_new_content(provider: RawProvider, tmp_path: Path) -> None:
    """Each request has the whole conversation. Reading returns what was sent; hashes do not depend on the storage."""
    dice = random.Random(26)
    system = dice.randbytes(2000).hex()
    messages: list[Any] = []
    bodies: list[str] = []
    new = len(system)
    with capturing(tmp_path, provider.url) as captured:
        for number in range(60):
            messages.append({"role": "user", "content": dice.randbytes(1000).hex()})
            bodies.append(json.dumps({"model": "m", "messages": messages, "system": f"turn {number}: {system}"}))
            reply = {"role": "assistant", "content": [{"type": "text", "text": dice.randbytes(500).hex()}]}
            answer = json.dumps({"id": f"msg_{number}", "type": "message", **reply}).encode()
            new += len(json.dumps(messages[-1])) + len(answer)
            provider.answers = [Raw([("Content-Type", "application/json")], [answer])]
            send_request(
                captured.url, "POST", "/v1/messages", bodies[-1].encode(), {"Content-Type": "application/json"}
            )
            messages.append(reply)
    files = [each for each in (tmp_path / "log").rglob("*") if each.is_file()]
    # RocksDB writes its own log files, to which no turn adds anything.
    stored = sum(each.stat().st_size for each in files if not each.name.startswith(("LOG", "OPTIONS")))
    assert stored < 3 * new < sum(map(len, bodies)) / 5
    (run,) = recordings(tmp_path)
    assert [step.calls[0].asked.request["body"] for step in run.steps] == bodies
    assert list(broken(run)) == []
    with log_of(tmp_path) as log:
        heard = log.knew("agent").answers
        assert sorted(each.call.asked.request["body"] for each in heard) == sorted(bodies)


RESPONSE: dict[str, Any] = {
    "id": "resp_1", "object": "response", "model": "m",
    "output": [
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": '{"at": 1}'},
    ],
}  # fmt: skip
SAID = {
    "id": "resp_2", "object": "response", "model": "m",
    "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is 5."}]}],
}  # fmt: skip


@pytest.mark.parametrize("is_kept", [True, False], ids=["the provider keeps it", "the client sends it"])
@pytest.mark.parametrize("is_streamed", [True, False], ids=["streamed", "whole"])
def test_session_of_the_responses_api(provider: RawProvider, tmp_path: Path, is_kept: bool, is_streamed: bool) -> None:
    result = {"type": "function_call_output", "call_id": "call_1", "output": "5"}
    before: list[Any] = [{"role": "user", "content": "what is there?"}]
    after = [result] if is_kept else [*before, *RESPONSE["output"], result]
    bodies: list[dict[str, Any]] = [
        {"model": "m", "input": "what is there?" if is_kept else before}, {"model": "m", "input": after},
    ]  # fmt: skip
    if is_kept:
        bodies[1]["previous_response_id"] = "resp_1"
    for found in (RESPONSE, SAID):
        event = f"event: response.completed\ndata: {json.dumps({'type': 'response.completed', 'response': found})}\n\n"
        provider.answers.append(
            Raw(EVENTS, [event.encode()]) if is_streamed else
            Raw([("Content-Type", "application/json")], [json.dumps(found).encode()])
        )  # fmt: skip
    with capturing(tmp_path, provider.url) as captured:
        for body in bodies:
            send_request(
                captured.url, "POST", "/v1/responses", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
    (run,) = recordings(tmp_path)
    assert (len(run.steps), run.outcome, run.output, run.title) == (2, "succeeded", "It is 5.", "what is there?")
    (call,) = run.steps[0].calls[1:]
    assert (call.asked.name, call.asked.request["kwargs"], call.answer) == ("look", {"at": 1}, "5")


@pytest.mark.parametrize(
    "body", ["", "[]", "{", '{"messages": 5}', '{"messages": [5, {"role": []}]}', '{"messages": [[]]}']
)
@pytest.mark.parametrize("answer", ["", "null", "{}", '{"content": 5}', 'data: {"type": "content_block_delta"}\n\n'])
def test_other_json_is_no_turn_and_no_error(body: str, answer: str) -> None:
    turn = turn_of({"url": "http://h/v1/messages", "method": "POST", "body": body})
    if turn is not None:
        found = reply_of(turn.family, {"status": 200, "end": "whole", "chunks": [[0, answer]]})
        assert found is None or not found.calls
