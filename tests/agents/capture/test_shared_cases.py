"""The cases of papercomputeco/tapes (MIT), each sent through the proxy with a test provider.

`content-encoding` says how a body must be decoded. refold differs on purpose in three cases:

- it reads br and deflate, which tapes refuses;
- a response that cannot be decoded is stored as its bytes, with a note; one that is too long is stored as far as it was
  read;
- a request that cannot be decoded, or is cut off, is stored as a note with its length and its SHA-256, because bytes
  that cannot be decoded cannot be searched for credentials.

`drop-reason` says why tapes keeps no turn of an exchange. refold keeps the exchange in every one of these cases except
`sem_full`, which it counts. REASONS says how each is recorded.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from refold.agents.capture.exchange import bytes_of
from refold.agents.capture.turns import turn_of
from refold.agents.journal.record import Call, Step
from refold_tests.captures import Captured, capturing, log_of
from refold_tests.corpora import members
from refold_tests.encoding_cases import body_of
from refold_tests.raw_provider import Raw, answering_with, raw_provider

pytestmark = pytest.mark.outside

WAIT_S = 120.0
JSON = [("Content-Type", "application/json")]
ASKED = b'{"model": "m", "messages": [{"role": "user", "content": "what?"}], "input": "what?"}'
REPLY = b'{"type": "message", "role": "assistant", "content": [{"type": "text", "text": "that"}]}'


class StoredExchange(NamedTuple):
    """What the log has of an exchange. title: of its run. call: of the model."""

    title: str
    step: Step
    call: Call


def found_in(folder: Path) -> dict[str, StoredExchange]:
    """Return the exchanges of a closed capture, by the path of their request."""
    found: dict[str, StoredExchange] = {}
    with log_of(folder) as log:
        for row in log.runs():
            recording = log.recording(row.run)
            for step in recording.steps:
                call = step.calls[0]
                path = urlsplit(call.asked.request["url"]).path
                assert path not in found, "an exchange is recorded twice"
                found[path] = StoredExchange(recording.title, step, call)
    return found


def sent(captured: Captured, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    """Send a request through the proxy; return status and body of the response."""
    parts = urlsplit(captured.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT_S)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_each_body_in_each_encoding(tmp_path: Path, turns_file: Path) -> None:
    """Send all 27, as a request and as a response. Both sides get the bytes unchanged."""
    cases = {name.removesuffix(".json"): json.loads(data)
             for name, data in members(turns_file, "content-encoding").items()}  # fmt: skip
    assert len(cases) == 27
    bodies = {name: body_of(case["body"]) for name, case in cases.items()}
    with raw_provider() as provider, capturing(tmp_path, provider.url) as captured:
        for name, case in cases.items():
            header = {} if case["encoding"] is None else {"Content-Encoding": case["encoding"]}
            _, body = bodies[name]
            provider.answers = [Raw([*JSON, *header.items()], [body] if body else [])]
            status, got = sent(captured, "POST", f"/{name}", body, {**dict(JSON), **header})
            assert (status, got) == (200, body), name
            assert provider.requests[-1][3] == body, name
    assert captured.said == []
    found = found_in(tmp_path)
    assert set(found) == {f"/{name}" for name in cases}
    for name, case in cases.items():
        judge(name, case["expect"], *bodies[name], found[f"/{name}"].call)


def judge(name: str, expected: Any, plain: bytes, body: bytes, call: Call) -> None:
    """Check that what is recorded of a case, as request and as response, is what the case says."""
    asked, answered = (
        bytes_of(call.asked.request["body"]),
        b"".join(bytes_of(each) for _, each in call.answer["chunks"]),
    )
    note = call.answer.get("encoding")
    if "bytes_b64" in expected.get("decoded", ()):
        plain = base64.b64decode(expected["decoded"]["bytes_b64"])
    if expected["outcome"] == "decoded":
        assert (answered, asked, note) == (plain, plain, None), name
        return
    if body:
        assert asked.startswith(b"[%d bytes that are not kept: " % len(body)), name
        assert hashlib.sha256(body).hexdigest().encode() in asked, name
    else:
        assert asked == b"", name
    if expected["outcome"] == "salvaged":
        assert answered, name
        assert plain.startswith(answered), name
        assert not note["raw"], name
    elif not body:  # there is nothing to decode, and so no error of the response
        assert (answered, note) == (b"", None), name
    else:
        assert note["problem"], name
        assert answered == body if note["raw"] else plain.startswith(answered), name


REASONS = {
    "client_disconnect": "a turn that failed, with what the agent got",
    "empty_response": "a turn that succeeded and has no reply",
    "ingest_reject": "in the spool, until the log takes it",
    "ingest_timeout": "in the spool, until the log takes it",
    "marshal_error": "in the spool, until the log takes it",
    "missing_status": "a turn that failed, with a 502 for the agent",
    "non_turn_request": "a call that is no turn",
    "reducer_error": "a turn that has no reply",
    "request_decode": "a call that is no turn",
    "request_over_budget": "a call that is no turn",
    "response_decode": "a turn that has no reply",
    "sem_full": "counted as missed",
    "unknown_provider": "a call that is no turn",
    "upstream_no_response": "a turn that failed, with a 502 for the agent",
    "upstream_status": "a turn; one that failed if its status is 400 or more",
}
"""How refold records an exchange of which tapes keeps no turn, by tapes' reason."""

GZIP = [("Content-Encoding", "gzip")]


class Odd(NamedTuple):
    """A request and its response, and the headers of both in addition to those of JSON."""

    request: bytes = ASKED
    response: bytes = REPLY
    of_request: Sequence[tuple[str, str]] = ()
    of_response: Sequence[tuple[str, str]] = ()


ODD = {
    "empty_response": Odd(),
    "reducer_error": Odd(response=b'{"type": "message"}'),
    "response_decode": Odd(response=b"\x1f\x8b is none", of_response=GZIP),
    "request_decode": Odd(request=b"\x1f\x8b is none", of_request=GZIP),
    "request_over_budget": Odd(request=b'{"messages": [{"role": "user", "content": "%b"}]}' % (b"x" * 30_000)),
}
LOOSE = "calls that are no turn of a conversation"


def test_every_incomplete_reason_is_covered(turns_file: Path) -> None:
    """A new reason in tapes must be considered."""
    assert {name.removesuffix(".json") for name in members(turns_file, "drop-reason")} == set(REASONS)


def test_reasons_in_a_whole_exchange(tmp_path: Path, turns_file: Path) -> None:
    """Test the reasons that come from a request, a status or a body. The agent gets what the provider sent."""
    reasons = {name.removesuffix(".json"): json.loads(data)
               for name, data in members(turns_file, "drop-reason").items()}  # fmt: skip
    requests = [("POST", f"/{name}/v1/messages", 200) for name in ODD]
    requests.append(("POST", "/unknown_provider/v9/converse-with-me", 200))
    turns = set()
    lower = ""
    for at, example in enumerate(reasons["non_turn_request"]["examples"]):
        path = f"/{at}{example['request']['path']}"
        # An HTTP request has a method: the case without one is sent as a POST, as which it is parsed.
        requests.append((example["request"]["method"] or "POST", path, 200))
        turns |= {urlsplit(path).path} if example["expect"] == "eligible" else set()
        # HTTP has no method `post`, and the proxy refuses it. The parser accepts it.
        if example["request"]["method"] == "post":
            lower = requests.pop()[1]
            assert turn_of({"url": f"http://h{lower}", "method": "post", "body": ASKED.decode()}) is not None
            turns.remove(lower)
    for example in reasons["upstream_status"]["examples"]:
        status = example["response"]["status"]
        requests.append(("POST", f"/{status}/v1/messages", status))
    with raw_provider() as provider, capturing(tmp_path, provider.url, body_bytes_max=20_000) as captured:
        for method, path, status in requests:
            name = path.split("/")[1]
            odd = ODD.get(name, Odd())
            body, answer = odd.request, [odd.response]
            headers, encoded = dict([*JSON, *odd.of_request]), [*JSON, *odd.of_response]
            if name == "empty_response" or status == 204:
                answer = []
            provider.answers = [Raw(encoded, answer, status)]
            found_status, got = sent(captured, method, path, body, headers)
            assert found_status == status, path
            assert got == (b"" if method == "HEAD" else b"".join(answer)), path
            assert provider.requests[-1][3] == body, path
        status, got = sent(captured, "post", lower, ASKED, dict(JSON))
        assert (status, json.loads(got)["error"]["message"]) == (400, "refold: this is not HTTP/1.1: BadHttpMethod")
    assert captured.said == ["1 exchange was not kept: a request was not HTTP: BadHttpMethod"]
    found = found_in(tmp_path)
    assert len(found) == len(requests)
    for path, each in found.items():
        name = path.split("/")[1]
        turn = turn_of(each.call.asked.request)
        if name.isdigit() and int(name) < 100:
            assert (turn is not None) == (path in turns), path
        elif name.isdigit():
            assert (each.step.outcome == "failed") == (int(name) >= 400), path
            assert each.call.answer["status"] == int(name)
        else:
            assert (turn is None) == (REASONS[name] == "a call that is no turn"), path
            assert each.step.result is None, path
            assert each.step.outcome == "succeeded", path
        assert (each.title == LOOSE) == (turn is None), path


@pytest.mark.parametrize(
    ("reason", "data"),
    [("upstream_no_response", b""), ("missing_status", b"Content-Type: text/plain\r\n\r\nhello")],
    ids=["upstream_no_response", "missing_status"],
)
def test_reasons_of_the_providers_connection(tmp_path: Path, reason: str, data: bytes) -> None:
    with answering_with(lambda _: data) as url, capturing(tmp_path, url) as captured:
        status, got = sent(captured, "POST", f"/{reason}/v1/messages", ASKED, dict(JSON))
        assert status == 502
        assert "the proxy got no response" in json.loads(got)["error"]["message"]
    (each,) = found_in(tmp_path).values()
    assert (each.title, each.step.outcome, each.call.answer) == ("what?", "failed", None)


def test_agent_that_disconnects(tmp_path: Path) -> None:
    """client_disconnect."""
    ended = threading.Event()
    with raw_provider() as provider, capturing(tmp_path, provider.url) as captured:
        provider.before_end = lambda: ended.wait(WAIT_S)
        provider.answers = [Raw([("Content-Type", "text/event-stream")], [b"data: {}\n\n"])]
        parts = urlsplit(captured.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT_S)
        connection.request("POST", "/v1/messages", ASKED, dict(JSON))
        response = connection.getresponse()
        assert response.read(10) == b"data: {}\n\n"
        response.close()
        connection.close()
        until(lambda: not list((tmp_path / "spool").rglob("*.open")))
        ended.set()
    (each,) = found_in(tmp_path).values()
    assert (each.title, each.step.outcome, each.call.answer["end"]) == ("what?", "failed", "left")
    assert each.call.answer["chunks"][0][1] == "data: {}\n\n"


def test_reasons_of_storage(tmp_path: Path) -> None:
    """ingest_reject, ingest_timeout and marshal_error: the log accepts nothing. sem_full: the spool is full, too."""
    (tmp_path / "log").write_text("a file where the log's folder has to be")
    with raw_provider() as provider, capturing(tmp_path, provider.url, spool_bytes_max=3000) as captured:
        provider.answers = [Raw(JSON, [REPLY]) for _ in range(20)]
        for number in range(20):
            assert sent(captured, "POST", f"/{number}/v1/messages", ASKED, dict(JSON)) == (200, REPLY)
        until(lambda: captured.said)
        assert "the log cannot be written, and what is captured waits in" in captured.said[0]
        (tmp_path / "log").unlink()
        stored = captured.close()
    assert stored.exchanges + stored.missed == 20
    assert min(stored.exchanges, stored.missed) > 0
    with log_of(tmp_path) as log:
        (gap,) = log.runs(error="CaptureGap")
        failure = log.recording(gap.run).failure
        titles = [row.title for row in log.runs() if row.run != gap.run]
    assert failure is not None
    assert failure.message.startswith(f"{stored.missed} exchanges were not kept: the spool")
    assert titles == ["what?"] * stored.exchanges


def until(condition: Callable[[], Any]) -> None:
    """Wait until the condition holds."""
    waiting = threading.Event()
    for _ in range(round(WAIT_S / 0.02)):
        if condition():
            return
        waiting.wait(0.02)
    raise AssertionError("it did not come")
