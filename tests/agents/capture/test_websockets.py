"""OpenAI's responses by WebSocket: with the real SDK, with a plain client, and played from the recording."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from refold.agents.capture.playback import RecordedUpstream
from refold.agents.capture.server import LoopbackServer
from refold.agents.journal.chain import broken
from refold.agents.journal.record import Recording
from refold_tests.captures import capturing, log_of
from refold_tests.socket_provider import SocketProvider, events_of, socket_provider

pytestmark = pytest.mark.outside

WAIT_S = 120.0
KEY = "sk-planted-in-a-websocket"
CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": '{"at": 1}'}
RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "5"}


@pytest.fixture
def provider() -> Iterator[SocketProvider]:
    with socket_provider() as provider:
        yield provider


@contextmanager
def opened(url: str, **given: Any) -> Iterator[ClientConnection]:
    """Open a plain client's connection."""
    to = url.replace("http://", "ws://") + "/v1/responses"
    # Any: some releases of the client name the class of what it yields less exactly.
    client: Any = connect(to, max_size=None, open_timeout=WAIT_S, close_timeout=WAIT_S, proxy=None, **given)
    with client as connection:
        yield connection


def asking(text: str, **more: Any) -> str:
    return json.dumps({"type": "response.create", "model": "m", "input": text, **more})


def receive_many(connection: ClientConnection, many: int) -> list[str | bytes]:
    return [connection.recv(WAIT_S) for _ in range(many)]


def recordings(folder: Path) -> list[Recording]:
    with log_of(folder) as log:
        return [log.recording(row.run) for row in reversed(log.runs())]


@contextmanager
def playing(found: list[Recording], said: list[str] | None = None) -> Iterator[str]:
    """Yield the URL of a server that answers from recordings."""
    say = (lambda line: None) if said is None else said.append
    server = LoopbackServer(lambda: RecordedUpstream(found, say=say))
    try:
        yield server.url
    finally:
        server.close()


def session_of_the_sdk(url: str) -> list[str]:
    """Run two turns with a tool through OpenAI's SDK; return the events in order of arrival."""
    found: list[str] = []
    client = OpenAI(api_key=KEY, base_url=f"{url}/v1", max_retries=0)
    with client.responses.connect() as connection:
        for more in ({"input": "what is there?"}, {"input": [RESULT], "previous_response_id": "resp_1"}):
            connection.response.create(model="m", **more)
            is_answered = False
            while not is_answered:
                found.append(connection.recv_bytes().decode())
                is_answered = "response.completed" in found[-1]
    client.close()
    return found


@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")  # from the SDK
def test_openai_sdk_over_websocket_is_recorded_and_played_back(provider: SocketProvider, tmp_path: Path) -> None:
    """The recording has two turns of one run, with the tool's result, and returns the same events."""
    provider.answers = [events_of(1, "", [CALL]), events_of(2, "It is 5.")]
    expected = [*events_of(1, "", [CALL]), *events_of(2, "It is 5.")]
    with capturing(tmp_path, provider.url) as captured:
        assert session_of_the_sdk(captured.url) == expected
    assert captured.said == []
    assert provider.heads[0]["Authorization"] == f"Bearer {KEY}"
    (run,) = recordings(tmp_path)
    assert (len(run.steps), run.outcome, run.output, run.title) == (2, "succeeded", "It is 5.", "what is there?")
    (call,) = run.steps[0].calls[1:]
    assert (call.asked.name, call.asked.request["kwargs"], call.answer) == ("look", {"at": 1}, "5")
    answer = run.steps[1].calls[0].answer
    assert ([text for _, text in answer["chunks"]], answer["end"], answer["status"]) == (expected[2:], "whole", 101)
    assert list(broken(run)) == []
    with playing([run]) as url:
        assert session_of_the_sdk(url) == expected
    assert len(provider.heads) == 1


def test_binary_messages_lanes_and_provider_metadata(provider: SocketProvider, tmp_path: Path) -> None:
    """Each message keeps its kind; events belong to the exchange of their stream_id."""
    late = events_of(1, "one two", more="a")
    provider.answers = [late[:2], [*events_of(2, "three", more="b"), *late[2:], '{"type": "rate_limits.updated"}'],
                        ["of itself", b'{"text": "in bytes"}']]  # fmt: skip
    sent: list[str | bytes] = [asking("x", stream_id="a"), asking("y", stream_id="b"), b"\x00\xff"]

    def talk(url: str) -> list[str | bytes]:
        with opened(url) as connection:
            connection.send(sent[0])
            found = receive_many(connection, 2)
            connection.send(sent[1])
            found += receive_many(connection, 6)
            connection.send(sent[2])
            return [*found, *receive_many(connection, 2)]

    with capturing(tmp_path, provider.url) as captured:
        got = talk(captured.url)
    assert got == [*late[:2], *events_of(2, "three", more="b"), *late[2:], '{"type": "rate_limits.updated"}',
                   "of itself", b'{"text": "in bytes"}']  # fmt: skip
    assert provider.asked == sent
    calls = {step.calls[0].asked.request["body"] if isinstance(step.calls[0].asked.request["body"], str) else "binary":
             step.calls[0].answer for run in recordings(tmp_path) for step in run.steps}  # fmt: skip
    assert [text for _, text in calls[str(sent[0])]["chunks"]] == late
    assert [text for _, text in calls[str(sent[1])]["chunks"]] == events_of(2, "three", more="b")
    assert [text for _, text in calls[""]["chunks"]] == ['{"type": "rate_limits.updated"}']
    assert [body for _, body in calls["binary"]["chunks"]] == [
        "of itself", {"base64": "eyJ0ZXh0IjogImluIGJ5dGVzIn0="},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ends", "end", "code"),
    [(1011, "broken", 1011), (1000, "whole", 1000), (None, "broken", 1006)],
    ids=["with a code", "in order", "without a close"],
)
def test_connection_closed_by_the_provider(
    provider: SocketProvider, tmp_path: Path, ends: int | None, end: str, code: int
) -> None:
    """The agent's connection ends in the same way, and so does the one that the recording serves."""
    provider.answers = [events_of(1, "one"), ends]

    def talk(url: str) -> int:
        with opened(url) as connection:
            connection.send(asking("x"))
            assert receive_many(connection, 3) == events_of(1, "one")
            connection.send(asking("y"))
            with pytest.raises(ConnectionClosed):
                connection.recv(WAIT_S)
            return connection.close_code or 1006

    with capturing(tmp_path, provider.url) as captured:
        assert talk(captured.url) == code
    found = recordings(tmp_path)
    answers = [run.steps[0].calls[0].answer for run in found]
    assert sorted(each["end"] for each in answers) == sorted(["whole", end])
    assert [run.steps[0].outcome for run in found] == ["succeeded", "failed" if end == "broken" else "succeeded"]
    if code != 1000:
        with playing(found) as url:
            assert talk(url) == code


def test_agent_that_disconnects_during_a_response(provider: SocketProvider, tmp_path: Path) -> None:
    """The provider's connection is closed with the same code, and what the agent got is recorded."""
    provider.answers = [events_of(1, "one two three")[:2]]
    with capturing(tmp_path, provider.url) as captured, opened(captured.url) as connection:
        connection.send(asking("x"))
        receive_many(connection, 2)
        connection.close(4001)
        deadline = time.monotonic() + WAIT_S
        while not provider.ended:  # the end of the capture would close the provider's connection too
            assert time.monotonic() < deadline, "the provider's connection was not closed"
            time.sleep(0.02)
    (run,) = recordings(tmp_path)
    answer = run.steps[0].calls[0].answer
    assert (answer["end"], len(answer["chunks"]), run.steps[0].outcome) == ("left", 2, "failed")
    assert provider.ended == [4001]


def test_refused_handshake_is_an_exchange(provider: SocketProvider, tmp_path: Path) -> None:
    """The agent gets the provider's own answer."""
    provider.refusal = 401
    with capturing(tmp_path, provider.url) as captured:
        with pytest.raises(InvalidStatus) as refused, opened(captured.url):
            pass
        assert (refused.value.response.status_code, refused.value.response.body) == (
            401, b'{"error": {"message": "no such key"}}',
        )  # fmt: skip
    (run,) = recordings(tmp_path)
    assert run.steps[0].calls[0].answer["status"] == 401


def test_websocket_credentials_never_reach_the_disk(provider: SocketProvider, tmp_path: Path) -> None:
    """Credentials are sent in the handshake's headers, query and subprotocol, in a message, and by the provider."""
    planted = [KEY, "planted-in-the-query", "planted-in-the-protocol", "planted-in-a-message"]
    body = {"metadata": {"api_key": planted[3]}}
    provider.answers = [[json.dumps({"type": "error", "status": 400, "error": {"message": " ".join(planted[:3])}})]]
    to = "/v1/responses?api_key=" + planted[1]
    with capturing(tmp_path, provider.url) as captured:
        url = captured.url.replace("http://", "ws://") + to
        headers = {"Authorization": f"Bearer {KEY}", "Sec-WebSocket-Protocol": f"openai-insecure-api-key.{planted[2]}"}
        with connect(url, proxy=None, additional_headers=headers) as connection:
            connection.send(asking("x", **body))
            assert planted[0] in str(connection.recv(WAIT_S))
    assert json.loads(provider.asked[0])["metadata"] == body["metadata"]
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert sum(each.stat().st_size for each in files) > 1000
    for each in files:
        data = each.read_bytes()
        assert not [secret for secret in planted if secret.encode() in data], each
    (run,) = recordings(tmp_path)
    failure = run.steps[0].attempts[-1].failure
    assert failure is not None
    assert (failure.exception, run.steps[0].outcome) == ("HTTP 400", "failed")


def test_unrecorded_message_is_answered_with_an_error(provider: SocketProvider, tmp_path: Path) -> None:
    """The error names the nearest turn and the differences; the connection continues."""
    provider.answers = [events_of(1, "one")]
    with capturing(tmp_path, provider.url) as captured, opened(captured.url) as connection:
        connection.send(asking("the one"))
        receive_many(connection, 3)
    said: list[str] = []
    with playing(recordings(tmp_path), said) as url, opened(url) as connection:
        connection.send(asking("another"))
        error = json.loads(connection.recv(WAIT_S))
        assert (error["type"], error["status"]) == ("error", 400)
        assert "nearest is turn 1" in error["error"]["message"]
        assert "another" in error["error"]["message"]
        connection.send(asking("the one"))
        assert receive_many(connection, 3) == events_of(1, "one")
    assert len(said) == 1
