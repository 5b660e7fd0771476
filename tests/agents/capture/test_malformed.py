"""Malformed requests and answers: they are no turns, or turns with less content, and never an error.

Then bytes that are not HTTP at all, from the agent and from the provider.

REFOLD_FAULT_ROUNDS scales the number of cases: `make soak` sends more than 30,000 requests and 30,000 answers. An error
names the seed of its case.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from refold.agents.capture.answers import body_of, json_exchange, reported_tokens
from refold.agents.capture.exchange import Response, texts_of, with_texts
from refold.agents.capture.turns import answers_to, going_on, reply_of, results_of, said_by, title_of, turn_of
from refold.agents.journal.chain import broken
from refold_tests.captures import capturing, log_of
from refold_tests.model_server import Reply
from refold_tests.provider_server import answer_to
from refold_tests.raw_provider import Raw, answering_with, raw_provider

pytestmark = [pytest.mark.outside, pytest.mark.soak]

CASES = 75 * int(os.environ.get("REFOLD_FAULT_ROUNDS", "6"))
ASKING = Reply(["Let me ", "see."], [("look", {"at": 1})])
TOOLS: dict[str, Any] = {"tools": [{"name": "look"}], "stream": True}
CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "what is there?"}]},
    {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "look", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c", "content": "nothing"},
]  # fmt: skip
BLOCKS = [
    {"role": "user", "content": [{"text": "what?"}]},
    {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t", "name": "look", "input": {}}}]},
    {"role": "user", "content": [{"toolResult": {"toolUseId": "t", "content": [{"json": {}}], "status": "error"}}]},
]
CONTENTS = [
    {"role": "user", "parts": [{"text": "what?"}]},
    {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {}}}]},
    {"parts": [{"functionResponse": {"name": "look", "response": {"error": "no"}}}]},
]
CLAUDE = [
    {"role": "user", "content": "what?"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "u", "name": "look", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "u", "content": "no", "is_error": True}]},
]
ITEMS = [
    {"role": "user", "content": "what?"},
    {"type": "function_call", "call_id": "f", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "f", "output": "no"},
]
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"model": "m", "messages": CHAT, **TOOLS}),
    ("/v1/messages", {"model": "m", "messages": CLAUDE, **TOOLS}),
    ("/v1/responses", {"model": "m", "input": ITEMS, "previous_response_id": "r"}),
    ("/v1beta/models/m:streamGenerateContent?alt=sse", {"contents": CONTENTS}),
    ("/v1beta/models/m:generateContent", {"contents": CONTENTS}),
    ("/api/chat", {"model": "m", "messages": [{**CHAT[2], "tool_name": "look"}, *CHAT]}),
    ("/api/generate", {"model": "m", "prompt": "what?", "context": [1, 2]}),
    ("/model/m/converse-stream", {"messages": BLOCKS}),
    ("/model/m/invoke-with-response-stream", {"messages": CLAUDE}),
]
ODD: list[Any] = [
    None,
    True,
    -1,
    10**30,
    1.5,
    "",
    "x",
    [],
    {},
    [[]],
    {"type": []},
    [None],
    "\ud800",
    {"role": {}},
    {"": None},
]


def changed(dice: random.Random, tree: Any) -> Any:
    """Return the tree with another value in one place, or without that value."""
    if not isinstance(tree, dict | list) or not tree or dice.random() < 0.15:
        return dice.choice(ODD)
    place = dice.choice(list(tree) if isinstance(tree, dict) else range(len(tree)))
    made = tree.copy()
    if dice.random() < 0.2:
        del made[place]
    else:
        made[place] = changed(dice, tree[place])
    return made


def damaged(dice: random.Random, data: bytes) -> bytes:
    """Return the bytes with some of them cut, doubled or changed."""
    for _ in range(dice.randrange(4)):
        at, end = sorted(dice.randrange(len(data) + 1) for _ in range(2))
        how = dice.randrange(4)
        end = min(end, at + 40)
        data = (
            data[:at] if how == 0 else data[:at] + data[end:] if how == 1 else data[:end] + data[at:] if how == 2
            else data[:at] + dice.randbytes(end - at) + data[end:]
        )  # fmt: skip
    return data


def case(seed: int) -> tuple[str, bytes, str, bytes]:
    """Return target and body of a request, and content type and body of its answer."""
    dice = random.Random(seed)
    target, given = dice.choice(REQUESTS)
    body: Any = given
    for _ in range(dice.randrange(3)):
        body = changed(dice, body)
    sent = json.dumps(body).encode()
    known = {"model": "m", **(body if isinstance(body, dict) else {})}
    content_type, answer = "application/json", json.dumps({"content": [], "choices": [{}], "output": []}).encode()
    if not target.startswith("/v1/"):
        content_type, answer = answer_to(target, {**known, "model": "m"}, ASKING)
    if dice.random() < 0.3:
        sent = damaged(dice, sent)
    with contextlib.suppress(ValueError):  # a stream is not JSON
        answer = json.dumps(changed(dice, json.loads(answer))).encode() if dice.random() < 0.5 else answer
    return target, sent, content_type, damaged(dice, answer)


def test_malformed_input_is_parsed_as_far_as_possible() -> None:
    """Pass each case to every reader. The first case that fails is named by its seed."""
    turns = replies = 0
    for seed in range(CASES * 5):
        target, sent, content_type, answered = case(seed)
        collected = Response([], "HTTP/1.1", 200, [("Content-Type", content_type)], 0)
        for at in range(0, len(answered), 97):
            collected.add(answered[at : at + 97], at)
        answer = collected.answer()
        request = {"url": f"http://h{target}", "method": "POST", "body": sent.decode("utf-8", "replace")}
        try:
            assert body_of(answer) == answered
            reported_tokens(json_exchange({**request, "exchange": 1}, answer)[1])
            texts = texts_of(answer)
            assert texts == [] or with_texts(answer, texts) == answer
            turn = turn_of(request)
            if turn is None:
                continue
            turns += 1
            title_of(turn.family, turn.messages)
            results = results_of(turn.family, turn.messages)
            said_by(turn.family, turn.messages)
            assert going_on(request, turn.messages) is not None
            reply = reply_of(turn.family, answer)
            if reply is not None:
                replies += 1
                assert len(answers_to(reply.calls, results)) == len(reply.calls)
                said_by(turn.family, reply.messages)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {target} {sent!r} {answered!r}") from error
    assert turns > CASES
    assert replies > CASES / 10


@pytest.mark.parametrize("first", [0, 1_000_000], ids=["some", "others"])
def test_malformed_traffic_is_forwarded_unchanged_and_recorded(tmp_path: Path, first: int) -> None:
    """With the proxy, the agent gets the provider's bytes, and each exchange is recorded once."""
    seeds = range(first, first + CASES // 4)
    with raw_provider() as provider, capturing(tmp_path, provider.url) as captured:
        parts = urlsplit(captured.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
        for seed in seeds:
            target, sent, content_type, answered = case(seed)
            pieces = [answered[at : at + 211] for at in range(0, len(answered), 211)]
            provider.answers = [Raw([("Content-Type", content_type)], pieces)]
            connection.request("POST", target, sent, {"Content-Type": "application/json"})
            got = connection.getresponse().read()
            assert (got, provider.requests[-1][3]) == (answered, sent), f"seed {seed}"
        connection.close()
    assert captured.said == []
    assert captured.stored is not None
    assert (captured.stored.exchanges, captured.stored.missed, captured.stored.waiting) == (len(seeds), 0, 0)
    with log_of(tmp_path) as log:
        recordings = [log.recording(row.run) for row in log.runs()]
    calls = [call for each in recordings for step in each.steps for call in step.calls if call.asked.kind == "model"]
    assert len(calls) == len(seeds)
    assert [list(broken(each)) for each in recordings] == [[]] * len(recordings)


def malformed_head(seed: int) -> bytes:
    """Return an HTTP request that is damaged in its head, its body or both."""
    dice = random.Random(seed)
    _, sent, _, _ = case(seed)
    head = f"POST /{seed}/v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {SECRET}\r\n".encode()
    length = dice.choice([b"Content-Length: %d" % len(sent), b"Content-Length: -1", b"Content-Length: 9" + b"9" * 30,
                          b"Transfer-Encoding: chunked", b"Content-Length: 5\r\nContent-Length: 6", b"Expect: x",
                          b"Content-Encoding: gzip, br\r\nContent-Length: %d" % len(sent)])  # fmt: skip
    whole = b"%b%b\r\n\r\n%b" % (head, length, sent)
    return damaged(dice, whole) if dice.random() < 0.8 else whole


SECRET = "planted-in-a-malformed-request"


def to_its_end(address: tuple[str, int], sent: bytes) -> None:
    """Send the bytes on a separate connection, and read until it ends."""
    with contextlib.suppress(ConnectionError), socket.create_connection(address, timeout=120) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 16):
            pass


def test_non_http_traffic_is_refused_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each connection ends, nothing of it is logged, and what the provider got is recorded or counted."""
    with raw_provider() as provider, capturing(tmp_path, provider.url) as captured:
        parts = urlsplit(captured.url)
        # A request whose connection was reset may reach the provider after the next one.
        provider.otherwise = Raw([], [b"{}"])
        for seed in range(CASES):
            to_its_end((parts.hostname or "", parts.port or 0), malformed_head(seed))
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
        connection.request("POST", "/after/all", b"{}")
        assert connection.getresponse().read() == b"{}"
        connection.close()
    assert captured.stored is not None
    assert captured.stored.exchanges + captured.stored.missed >= len(provider.requests) > 0
    assert captured.stored.missed > CASES / 10, "many are not HTTP"
    assert captured.stored.waiting == 0
    assert caplog.records == []
    assert "refold/agents/capture" not in capfd.readouterr().err, "the provider itself may say that it was left"
    for each in tmp_path.rglob("*"):
        assert not each.is_file() or SECRET.encode() not in each.read_bytes(), each


def malformed_response(seed: int) -> bytes:
    """Return an HTTP response that is damaged anywhere, or bytes that are not HTTP."""
    dice = random.Random(seed)
    _, _, content_type, answered = case(seed)
    head = b"HTTP/1.1 200 OK\r\nX-Name: Z\xfcrich\r\nContent-Type: %b\r\n" % content_type.encode()
    cut = dice.randrange(len(answered) + 1)
    body, length = dice.choice([
        (answered, b"Content-Length: %d" % len(answered)), (answered, b"Content-Length: %d" % (len(answered) + 5)),
        (answered, b"Connection: close"), (answered, b"Content-Encoding: gzip"),
        (b"%x\r\n%b\r\n0\r\n\r\n" % (len(answered), answered), b"Transfer-Encoding: chunked"),
        (b"%x\r\n%b" % (len(answered), answered[:cut]), b"Transfer-Encoding: chunked"),
    ])  # fmt: skip
    whole = head + length + b"\r\n\r\n" + body
    return damaged(dice, whole) if dice.random() < 0.7 else whole


def seed_of(path: str) -> int:
    """Return the seed that a request names."""
    return int(path.split("/")[1])


def test_non_http_response_of_a_provider_is_recorded_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """The agent gets what can be read of it, or a 502. In both cases the exchange is in the log."""
    with answering_with(lambda path: malformed_response(seed_of(path))) as url, capturing(tmp_path, url) as captured:
        parts = urlsplit(captured.url)
        for seed in range(CASES):
            connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
            connection.request("POST", f"/{seed}/v1/x", b"{}", {"Content-Type": "application/json"})
            whole = malformed_response(seed)
            with contextlib.suppress(http.client.HTTPException, ConnectionError):
                response = connection.getresponse()
                got = b""
                with contextlib.suppress(http.client.HTTPException, ConnectionError):
                    while piece := response.read1():
                        got += piece
                assert response.status == 502 or b"refold_proxy" in got or got in whole, f"seed {seed}"
            connection.close()
    assert captured.said == []
    assert captured.stored is not None
    assert (captured.stored.missed, captured.stored.waiting) == (0, 0)
    with log_of(tmp_path) as log:
        steps = [step for row in log.runs() for step in log.recording(row.run).steps]
    assert sorted(seed_of(urlsplit(step.calls[0].asked.request["url"]).path) for step in steps) == list(range(CASES))
    assert caplog.records == []
    assert "refold/agents/capture" not in capfd.readouterr().err, "the provider itself may say that it was left"
