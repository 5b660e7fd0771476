"""The proxy between real SDKs and a test provider: the SDK gets the same bytes without it, with it, and in a replay.

All ways of use share one capture, which is closed before anything is checked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import openai
import pytest

from refold.agents.capture.playback import RecordedUpstream
from refold.agents.capture.server import LoopbackServer
from refold.agents.journal.chain import broken
from refold.agents.journal.record import Recording
from refold.agents.recordings.fields import Fields
from refold_tests.captures import capturing, log_of
from refold_tests.model_server import TEXT, WORDS, ModelServer, Reply, model_server
from refold_tests.received_bytes import received_bytes
from refold_tests.sdk_ways import KEY, REQUESTS, WAYS, Way, bare, prepare

pytestmark = pytest.mark.outside


def named(way: Way) -> str:
    return f"{way.sdk}-{'async' if way.is_async else 'sync'}-{way.use}"


class SdkResult(NamedTuple):
    """What an SDK got: the bytes of the responses, and what it returned."""

    bodies: list[bytes]
    returned: Any


class Used(NamedTuple):
    """The results of one way of use: without the proxy, and with it. requests: those that reached the provider through
    the proxy."""

    plain: SdkResult
    proxied: SdkResult
    requests: list[Any]


class Everything(NamedTuple):
    """The results of all ways of use, and their runs, by title."""

    used: dict[str, Used]
    runs: dict[str, Recording]


def prompt(way: Way) -> Any:
    return [{"role": "user", "content": named(way)}]


def given_by(way: Way, server: ModelServer, url: str = "") -> SdkResult:
    """Use an SDK. A client that leaves reads as many bytes as have arrived."""
    with received_bytes() as bodies:
        returned = bare(way, server, url, prompt(way))
    return SdkResult([] if way.use == "left" else [bytes(each) for each in bodies], returned)


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


@pytest.fixture(scope="module")
def everything(server: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Everything:
    folder = tmp_path_factory.mktemp("proxy")
    used: dict[str, Used] = {}
    with capturing(folder, server.url) as captured:
        for way in WAYS:
            prepare(server, way.use)
            plain = given_by(way, server)
            prepare(server, way.use)
            proxied = given_by(way, server, captured.url)
            used[named(way)] = Used(plain, proxied, list(server.requests))
    assert captured.said == []
    with log_of(folder) as log:
        runs = [log.recording(row.run) for row in log.runs()]
    assert captured.stored is not None
    assert captured.stored.exchanges == sum(REQUESTS.get(way.use, 1) for way in WAYS)
    return Everything(used, {each.title: each for each in runs})


# An embedding is not a turn of a conversation, so no run has its title.
SENT = [way for way in WAYS if REQUESTS.get(way.use, 1) and way.use != "embeddings"]


@pytest.mark.parametrize("way", SENT, ids=named)
def test_sdk_gets_the_same_through_the_proxy_and_in_a_replay(
    everything: Everything, server: ModelServer, way: Way
) -> None:
    used = everything.used[named(way)]
    assert used.proxied == used.plain
    assert way.use == "left" or (len(used.plain.bodies) == REQUESTS.get(way.use, 1) and all(used.plain.bodies))
    assert len(used.requests) == REQUESTS.get(way.use, 1)
    recording = everything.runs[named(way)]
    assert list(broken(recording)) == []
    assert len(recording.steps) == REQUESTS.get(way.use, 1), "each try is one step"
    prepare(server, "plain")
    replaying = RecordedUpstream([recording])
    serving = LoopbackServer(lambda: replaying)
    try:
        assert given_by(way, server, serving.url) == used.plain
    finally:
        serving.close()
    assert (replaying.served, replaying.unrecorded, replaying.waiting) == (REQUESTS.get(way.use, 1), 0, 0)
    assert server.requests == []


@pytest.mark.parametrize("way", [way for way in WAYS if way.use == "embeddings"], ids=named)
def test_embedding_passes_unchanged(everything: Everything, way: Way) -> None:
    used = everything.used[named(way)]
    assert used.proxied == used.plain
    assert len(used.requests) == 1


@pytest.mark.parametrize("way", SENT, ids=named)
def test_each_exchange_is_recorded_once_with_its_ending(everything: Everything, way: Way) -> None:
    recording = everything.runs[named(way)]
    answers = [call.answer for step in recording.steps for call in step.calls]
    if way.use != "left":  # the whole answer may have been sent before the client left
        assert answers[-1]["end"] == ("broken" if way.use == "broken" else "whole")
    assert [each["status"] for each in answers] == {
        "retried": [429, 200], "refused": [429],
    }.get(way.use, [200])  # fmt: skip
    outcomes = [step.outcome for step in recording.steps]
    assert outcomes == {
        "retried": ["failed", "succeeded"], "refused": ["failed"], "broken": ["failed"],
        "left": ["succeeded" if answers[-1]["end"] == "whole" else "failed"],
    }.get(way.use, ["succeeded"])  # fmt: skip
    assert recording.outcome == ("unknown" if outcomes[-1] == "failed" else "succeeded")
    if outcomes[-1] == "succeeded":
        assert recording.output == TEXT


def test_provider_receives_what_the_sdk_sent(everything: Everything, server: ModelServer) -> None:
    """They are equal except for the host name, which the proxy sets."""
    way = Way("openai", False, "plain")
    prepare(server, "plain")
    bare(way, server, asked=prompt(way))
    ((path, headers, body),) = server.requests
    ((path_by_proxy, headers_by_proxy, body_by_proxy),) = everything.used[named(way)].requests
    assert (path, body) == (path_by_proxy, body_by_proxy)
    assert {**headers, "Connection": ""} == {**headers_by_proxy, "Connection": ""}, "of the connection, and no more"
    assert headers["authorization"] == f"Bearer {KEY}"


def test_stream_is_forwarded_without_buffering(server: ModelServer, tmp_path: Path) -> None:
    server.reset()
    server.hold, server.held = threading.Event(), threading.Event()
    try:
        with capturing(tmp_path, server.url) as captured, openai.OpenAI(
            api_key=KEY, base_url=f"{captured.url}/v1"
        ) as client:  # fmt: skip
            asked: Any = [{"role": "user", "content": "slowly"}]
            stream = client.chat.completions.create(model="gpt-x", messages=asked, stream=True)
            events = iter(stream)
            # The provider sends nothing more before this has arrived.
            assert [next(events).choices[0].delta.content for _ in range(4)] == WORDS[:4]
            assert server.held.wait(300)
            assert not server.hold.is_set()
            server.hold.set()
            rest = [each.choices[0].delta.content for each in events if each.choices]
            assert rest[0] == WORDS[4]
    finally:
        server.hold.set()
        server.hold = None
    with log_of(tmp_path) as log:
        (row,) = log.runs()
        (call,) = log.recording(row.run).steps[0].calls
    pieces = [text for _, text in call.answer["chunks"]]
    assert len(pieces) == len(WORDS) + 2, "a piece for each event"
    assert all(piece.startswith("data: ") and piece.endswith("\n\n") for piece in pieces)


def test_client_disconnect_ends_the_exchange_and_the_upstream_connection(server: ModelServer, tmp_path: Path) -> None:
    server.reset()
    server.hold, server.held = threading.Event(), threading.Event()
    try:
        with capturing(tmp_path, server.url) as captured:
            with openai.OpenAI(api_key=KEY, base_url=f"{captured.url}/v1") as client:
                asked: Any = [{"role": "user", "content": "never mind"}]
                stream = client.chat.completions.create(model="gpt-x", messages=asked, stream=True)
                assert next(iter(stream)).choices[0].delta.content == WORDS[0]
                stream.close()
            deadline = time.monotonic() + 120
            while list((tmp_path / "spool").rglob("*.open")):  # wait until the proxy has noticed it
                assert time.monotonic() < deadline, "the proxy did not see that the agent hung up"
                time.sleep(0.02)
            stored = captured.close()
    finally:
        server.hold.set()
        server.hold = None
    assert (stored.exchanges, stored.missed) == (1, 0)
    with log_of(tmp_path) as log:
        (row,) = log.runs(error="AgentLeft")
        (step,) = log.recording(row.run).steps
    assert step.calls[0].answer["end"] == "left"


def test_session_is_one_run_with_its_tool_calls(server: ModelServer, tmp_path: Path) -> None:
    server.reset()
    minds = [
        Reply(["Let me see. "], [("find", {"id": 7}), ("find", {"id": 8})]),
        Reply(tools=[("pay", {"id": 7, "password": "p-planted-4711"})]),
        Reply(["It is ", "paid."]),
    ]
    server.mind = lambda body: minds[sum(each["role"] == "assistant" for each in body["messages"])]
    results = {"find": '{"paid": false}', "pay": "done"}
    try:
        with capturing(tmp_path, server.url) as captured, openai.OpenAI(
            api_key=KEY, base_url=f"{captured.url}/v1"
        ) as client:  # fmt: skip
            sessions: list[list[Any]] = [[{"role": "user", "content": "pay 7"}] for _ in range(2)]
            for _ in range(3):  # two sessions in alternation, which begin alike
                for messages in sessions:
                    answer = client.chat.completions.create(model="gpt-x", messages=messages)
                    messages.append(answer.choices[0].message.model_dump(exclude_none=True))
                    messages += [
                        {"role": "tool", "tool_call_id": call.id, "content": results[call.function.name]}  # type: ignore[union-attr]
                        for call in answer.choices[0].message.tool_calls or ()
                    ]
    finally:
        server.mind = lambda body: Reply(WORDS)
    with log_of(tmp_path) as log:
        rows = log.runs()
        assert [(row.steps, row.outcome, row.title) for row in rows] == [(3, "succeeded", "pay 7")] * 2
        for row in rows:
            recording = log.recording(row.run)
            said = [
                [(call.asked.kind, call.asked.name, call.answer) for call in step.calls[1:]] for step in recording.steps
            ]
            assert said == [
                [("tool", "find", results["find"])] * 2, [("tool", "pay", "done")], [],
            ]  # fmt: skip
            assert [step.calls[0].asked.kind for step in recording.steps] == ["model"] * 3
            action = log.state(f"action/{row.run}#1.2")
            opened = Fields(action, log.vault).opened
            assert (action.fields["tool"], action.fields["status"]) == ("find", "succeeded")
            assert (opened("inputs"), opened("output")) == ({"id": 8}, results["find"])
            assert [(each["relation"], each["target"]) for each in action.links] == [("of", f"step/{row.run}#1")]
            assert log.state(f"step/{row.run}#1").shown()["calls"][1]["action"] == f"{row.run}#1.2"
        parting = log.compare(rows[0].run, rows[1].run)
        assert parting is not None
        differing = {each.path.partition("[")[0] for each in parting.differences}
        assert differing == {"headers"}, "the provider's ids of the requests and its clock, and nothing else"
        assert [each.run for each in log.runs(tool="pay")] == [each.run for each in rows]
        knew = log.knew("agent")
        assert "paid" in str(knew)


def test_unrecorded_request_is_answered_with_the_first_difference(everything: Everything, server: ModelServer) -> None:
    way = Way("anthropic", False, "plain")
    recording = everything.runs[named(way)]
    replaying = RecordedUpstream([recording])
    serving = LoopbackServer(lambda: replaying)
    try:
        with pytest.raises(Exception, match=r"nearest is turn 1 of run") as failed:
            bare(way, server, serving.url, [{"role": "user", "content": "another question"}])
        assert 'messages[0].content: "another question" asked, "anthropic-sync-plain" recorded' in str(failed.value)
        assert recording.run in str(failed.value)
        # Marks for caches and sessions are not compared.
        marked = [{"role": "user", "content": named(way), "cache_control": {"type": "ephemeral"}}]
        bare(way, server, serving.url, marked)
        with pytest.raises(Exception, match="was served already"):
            bare(way, server, serving.url, prompt(way))
    finally:
        serving.close()
    assert (replaying.served, replaying.unrecorded) == (1, 2)


def test_credentials_are_in_no_file(everything: Everything, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Search the bytes of the log of all ways; the forwarded bytes do have the credentials."""
    folder = next(each for each in tmp_path_factory.getbasetemp().iterdir() if each.name.startswith("proxy"))
    files = [each for each in folder.rglob("*") if each.is_file()]
    assert sum(each.stat().st_size for each in files) > 10_000
    for each in files:
        data = each.read_bytes()
        for secret in (KEY, "top-secret-cookie"):
            assert secret.encode() not in data, each
    assert list((folder / "spool").iterdir()) == []
    assert KEY in str(everything.used["openai-sync-plain"].requests)
