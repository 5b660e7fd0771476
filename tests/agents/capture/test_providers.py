"""Gemini, Ollama and Bedrock with the proxy and their SDKs: the same result without it, with it, and in a replay.

All ways of use share one capture, which is closed before anything is checked.
"""

from __future__ import annotations

import base64
import http.client
import json
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from refold.agents.capture.answers import body_of
from refold.agents.capture.event_stream import Frames, frame_bytes, frame_changed, frame_kept
from refold.agents.capture.playback import RecordedUpstream
from refold.agents.capture.server import LoopbackServer
from refold.agents.capture.turns import going_on, said_by, turn_of
from refold.agents.journal.chain import broken
from refold.agents.journal.record import Recording
from refold.agents.journal.self_replay import state_at
from refold.agents.redaction.redactor import Redactor
from refold_tests.captures import capturing, log_of
from refold_tests.model_server import TEXT, Reply
from refold_tests.provider_server import USAGE, ProviderServer, frame, provider_server
from refold_tests.provider_ways import ARGUMENTS, KEY, RESULT, TOOL, WAYS, mind
from refold_tests.received_bytes import received_bytes

pytestmark = pytest.mark.outside

NAMES = [f"{provider}-{form}" for provider in WAYS for form in ("whole", "streamed")]
MODELS = {
    "gemini": ("gemini-x", "gcp.gemini"), "ollama": ("llama-x", "ollama"), "generate": ("llama-x", "ollama"),
    "converse": ("model-x:0", "aws.bedrock"), "invoke": ("claude-x", "anthropic"),
}  # fmt: skip


class Used(NamedTuple):
    """The results of one way of use: without the proxy, and with it. sent: the bodies of the provider's answers."""

    plain: Any
    proxied: Any
    sent: list[bytes]


class Everything(NamedTuple):
    """The results of all ways of use; by title, their runs and the fields of their model calls."""

    folder: Path
    used: dict[str, Used]
    runs: dict[str, Recording]
    model_calls: dict[str, list[dict[str, Any]]]


def use(name: str, url: str) -> tuple[list[bytes], list[Any]]:
    """Return the bodies that the SDK got, if it uses httpx, and what it returned."""
    provider, _, form = name.partition("-")
    with received_bytes() as bodies:
        returned = WAYS[provider](url, name, is_streamed=form == "streamed")
    assert len(bodies) == (0 if provider in ("converse", "invoke") else 2)
    return [bytes(each) for each in bodies], returned


@pytest.fixture(scope="module")
def server() -> Iterator[ProviderServer]:
    with provider_server() as server:
        server.mind = mind
        yield server


@pytest.fixture(scope="module")
def everything(server: ProviderServer, tmp_path_factory: pytest.TempPathFactory) -> Everything:
    folder = tmp_path_factory.mktemp("providers")
    used: dict[str, Used] = {}
    with capturing(folder, server.url) as captured:
        for name in NAMES:
            plain = use(name, server.url)
            server.sent.clear()
            used[name] = Used(plain, use(name, captured.url), list(server.sent))
    assert captured.said == []
    with log_of(folder) as log:
        rows = log.runs()
        runs = {str(row.title): log.recording(row.run) for row in rows}
        assert sorted(str(row.title) for row in rows) == sorted(NAMES)
        calls = {str(row.title): log.state(f"step/{row.run}#1").shown()["model_calls"] for row in rows}
    return Everything(folder, used, runs, calls)


@pytest.mark.parametrize("name", NAMES)
def test_sdk_gets_the_same_through_the_proxy_and_in_a_replay(
    everything: Everything, server: ProviderServer, name: str
) -> None:
    used = everything.used[name]
    assert used.proxied == used.plain
    recording = everything.runs[name]
    assert list(broken(recording)) == []
    server.requests.clear()
    replaying = RecordedUpstream([recording])
    serving = LoopbackServer(lambda: replaying)
    try:
        assert use(name, serving.url) == used.plain
    finally:
        serving.close()
    assert (replaying.served, replaying.unrecorded, replaying.waiting) == (2, 0, 0)
    assert server.requests == []


@pytest.mark.parametrize("name", NAMES)
def test_session_is_one_run_with_its_tool_calls(everything: Everything, name: str) -> None:
    recording = everything.runs[name]
    assert (len(recording.steps), recording.outcome, recording.output) == (2, "succeeded", TEXT)
    tools = [call for call in recording.steps[0].calls if call.asked.kind == "tool"]
    if name.startswith("generate"):
        assert tools == []
    else:
        (call,) = tools
        assert call.asked.request["kwargs"] == ARGUMENTS
        result = json.loads(call.answer)["result"] if name.startswith("gemini") else call.answer
        assert (call.asked.name, result, call.failure) == (TOOL, RESULT, None)
    (said,) = everything.model_calls[name]
    model, provider = MODELS[name.partition("-")[0]]
    assert (said["model"], said["provider"]) == (model, provider)
    assert (said["input_tokens"], said["output_tokens"]) == USAGE


@pytest.mark.parametrize("name", NAMES)
def test_recorded_bytes_equal_the_sent_bytes(everything: Everything, name: str) -> None:
    answers = [step.calls[0].answer for step in everything.runs[name].steps]
    for answer, sent in zip(answers, everything.used[name].sent, strict=True):
        assert body_of(answer) == sent
        assert "base64" not in str(answer["chunks"])
        if name in ("converse-streamed", "invoke-streamed", "ollama-streamed"):
            assert len(answer["chunks"]) > 1


@pytest.mark.parametrize("name", NAMES)
def test_continuation_request_reproduces_the_turn(everything: Everything, name: str) -> None:
    recording = everything.runs[name]
    asked = recording.steps[1].calls[0].asked.request
    messages = state_at(recording, 2)["messages"]
    body = going_on(asked, messages)
    path = asked["url"].replace("/api/generate", "/api/chat")
    turn = turn_of({**asked, "url": path, "body": json.dumps(body)})
    assert turn is not None
    assert (turn.messages, turn.follows) == (messages, "")
    assert said_by(turn.family, turn.messages)[1].endswith("".join(TEXT.split()))
    assert going_on({"url": "http://h/v1/embeddings", "method": "POST", "body": "{}"}, messages) is None


def test_credentials_are_in_no_file(everything: Everything) -> None:
    for each in (each for each in everything.folder.rglob("*") if each.is_file()):
        assert KEY.encode() not in each.read_bytes(), each


def test_gemini_stream_without_sse_is_a_list(server: ProviderServer, tmp_path: Path) -> None:
    body = json.dumps({"contents": [{"parts": [{"text": "what is there?"}]}]}).encode()
    with capturing(tmp_path, server.url) as captured:
        parts = urlsplit(captured.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
        connection.request("POST", "/v1beta/models/gemini-x:streamGenerateContent?key=AIza-planted", body)
        assert connection.getresponse().read() == server.sent[-1]
        connection.close()
    with log_of(tmp_path) as log:
        (row,) = log.runs()
        (step,) = log.recording(row.run).steps
        (said,) = log.state(f"step/{row.run}#1").shown()["model_calls"]
    assert (row.title, said["input_tokens"], said["model"]) == ("what is there?", USAGE[0], "gemini-x")
    assert [call.asked.name for call in step.calls[1:]] == [TOOL]
    assert step.calls[0].asked.request["url"].endswith("key=HIDDEN")


def test_body_is_split_at_frames_for_any_chunking() -> None:
    dice = random.Random(26)
    frames = [
        frame("chunk", json.dumps({"bytes": "YQ==", "n": n, "t": "ü" * n}, ensure_ascii=False).encode())
        for n in range(40)
    ]
    body = b"".join(frames)
    for _ in range(50):
        cuts = sorted({0, len(body), *(dice.randrange(len(body)) for _ in range(dice.randrange(30)))})
        cutting = Frames()
        found = [each for begin, end in pairwise(cuts) for each in cutting.feed(body[begin:end])]
        assert (found, cutting.rest()) == (frames, [])
    for data in frames:
        kept = frame_kept(data)
        assert kept is not None
        assert frame_bytes(kept) == data


def test_bytes_that_are_not_a_frame_are_kept_unchanged() -> None:
    good = frame("chunk", b"{}")
    for at in range(len(good)):
        damaged = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
        assert frame_kept(damaged) is None
        cutting = Frames()
        assert b"".join([*cutting.feed(good + damaged + good), *cutting.rest()]) == good + damaged + good
    assert frame_changed(good[:-1], lambda data: data.replace(b"{", b"[")) == good[:-1].replace(b"{", b"[")


def test_redacting_a_frame_keeps_it_a_valid_frame() -> None:
    inner = base64.b64encode(b'{"password": "hunter2"}').decode()
    for payload in (b'{"password": "hunter2"}', json.dumps({"bytes": inner, "p": "ab"}).encode()):
        found = frame_changed(frame("chunk", payload), lambda data: data.replace(b"hunter2", b"HIDDEN"))
        kept = frame_kept(found)
        assert kept is not None
        assert "hunter2" not in str(kept)
        assert "HIDDEN" in str(kept)


def test_secret_across_several_frames_is_redacted(server: ProviderServer, tmp_path: Path) -> None:
    """The recorded bytes are still a stream that the SDK can read; the forwarded bytes have the secret."""
    server.mind = lambda body: Reply(["my mail is bob.", "miller@exam", "ple.com, as ", "ever"])
    try:
        with capturing(tmp_path, server.url, redact=Redactor(b"k" * 16)) as captured:
            found = {name: use(name, captured.url) for name in ("converse-streamed", "invoke-streamed")}
    finally:
        server.mind = mind
    assert "ple.com" in str(found["converse-streamed"])
    with log_of(tmp_path) as log:
        recordings = [log.recording(row.run) for row in log.runs()]
        redact = log.capturing(Redactor(b"k" * 16)).redactor()
    assert len(recordings) >= 2
    for each in recordings:
        assert "miller" not in str(each)
        assert "[email:" in (str(each.output) or str(each.state))
    for name, got in found.items():
        serving = LoopbackServer(lambda: RecordedUpstream(recordings, redact))
        try:
            assert len(use(name, serving.url)[1]) == len(got[1])
        finally:
            serving.close()
