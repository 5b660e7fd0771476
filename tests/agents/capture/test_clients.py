"""Unchanged SDK clients, recorded at their transport: OpenAI's and Anthropic's, sync and async, in each way of use.

Every way is recorded, replayed, forked, run as a golden trace, and resumed. The test server counts requests: only a
recording sends any, and the code gets the same each time.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

import refold
from refold.agents.golden.add import golden_of_run
from refold.agents.golden.runner import judged_run
from refold.agents.journal.chain import broken
from refold.agents.log import AgentLog
from refold.agents.recorder.failures import Unfinished
from refold.agents.recorder.run import Run
from refold.avro.errors import InputError
from refold_tests.child import Child
from refold_tests.model_server import TEXT, ModelServer, model_server
from refold_tests.sdk_ways import ASKED, KEY, REQUESTS, WAYS, Way, bare, client_of, prepare, use_async, use_sync

pytestmark = pytest.mark.outside


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentLog]:
    with refold.open(f"file:{tmp_path_factory.mktemp('capture') / 'log'}") as log:
        yield log


@pytest.fixture(scope="module")
def running() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


@pytest.fixture
def server(running: ModelServer) -> ModelServer:
    running.reset()
    return running


def agent_of(way: Way, server: ModelServer) -> Callable[[Run], Any]:
    def agent(run: Run) -> Any:
        with client_of(way, server) as client, run.step("ask"):
            answer = use_sync(way, run.client(client))
            run.state["answer"] = answer
        return answer

    async def agent_async(run: Run) -> Any:
        async with client_of(way, server) as client, run.step("ask"):
            answer = await use_async(way, run.client(client))
            run.state["answer"] = answer
        return answer

    return agent_async if way.is_async else agent


def sent_to(server: ModelServer) -> list[Any]:
    """Return path, headers and bytes of the body of each request. No record has cookies, so the SDK gets none."""
    heads = [
        (path, {name: value for name, value in headers.items() if name.lower() != "cookie"})
        for path, headers, _ in server.requests
    ]
    return [*heads, *server.raw]


def driven(run: Run, agent: Callable[[Run], Any]) -> Any:
    return asyncio.run(run.drive_async(agent))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way.sdk}-{'async' if way.is_async else 'sync'}-{way.use}")
def test_sdk_gets_the_same_responses_recorded_and_replayed(log: AgentLog, server: ModelServer, way: Way) -> None:
    agent = agent_of(way, server)
    prepare(server, way.use)
    plain = bare(way, server)
    asked, sent = len(server.requests), sent_to(server)
    assert asked == REQUESTS.get(way.use, 1)

    prepare(server, way.use)
    run = log.run("a", state={"answer": None})
    answer = driven(run, agent)
    assert answer == plain
    assert sent_to(server) == sent, "it is sent what it is sent without refold"
    if way.use in ("plain", "retried"):
        assert TEXT in str(answer)

    prepare(server, way.use)
    recording = log.recording(run.id)
    assert list(broken(recording)) == []
    assert log.replay(run.id, agent).is_same
    forked = log.fork(run.id, at=0, policy="recorded")
    assert driven(forked, agent) == answer
    assert judged_run(golden_of_run(recording, log._fields, entry="agents:agent"), agent, "agent", Path()).passed
    assert server.requests == []


def test_credentials_are_never_recorded(log: AgentLog, server: ModelServer) -> None:
    run = log.run("a", state={"answer": None})
    driven(run, agent_of(Way("openai", False, "plain"), server))
    assert KEY in str(server.requests)
    recorded = str(log.recording(run.id))
    assert TEXT in recorded
    for secret in (KEY, "top-secret-cookie", "Authorization", "Set-Cookie"):
        assert secret not in recorded


def test_model_call_attributes_are_read_from_the_exchange(log: AgentLog, server: ModelServer) -> None:
    for sdk, tokens in (("openai", 5), ("anthropic", 5)):
        for use in ("plain", "stream"):
            run = log.run("a", state={"answer": None})
            driven(run, agent_of(Way(sdk, False, use), server))
            (call,) = log.state(f"step/{run.id}#1").shown()["model_calls"]
            assert call["model"] == ("gpt-x" if sdk == "openai" else "claude-x")
            assert (call["output_tokens"], call["provider"]) == (tokens, sdk)


def test_fork_may_call_another_model(log: AgentLog, server: ModelServer) -> None:
    way = Way("openai", False, "plain")
    run = log.run("a", state={"answer": None})
    driven(run, agent_of(way, server))
    server.reset()
    forked = log.fork(run.id, at=0, arguments={"model": {"model": "gpt-y"}})
    answer = driven(forked, agent_of(way, server))
    assert answer["model"] == "gpt-y"
    assert [body["model"] for _, _, body in server.requests] == ["gpt-y"]


def test_client_without_httpx_is_refused_by_name(log: AgentLog) -> None:
    with (
        log.run("a") as run,
        pytest.raises(InputError, match=r"object is not a client that uses httpx: pass its calls through"),
    ):
        run.client(object())


def test_response_read_after_its_step_is_refused(log: AgentLog, server: ModelServer) -> None:
    server.hold = threading.Event()
    try:
        with openai.OpenAI(api_key=KEY, base_url=server.url + "/v1") as sdk, log.run("a") as run:
            client = run.client(sdk)
            with run.step("ask"):
                stream = client.chat.completions.create(model="gpt-x", messages=ASKED, stream=True)
                first = next(iter(stream))
            server.hold.set()
            with pytest.raises(Unfinished, match="read after its step had ended"):
                list(stream)
    finally:
        server.hold.set()
        server.hold = None
    assert first.choices[0].delta.content == "It "
    (call,) = log.recording(run.id).steps[0].calls
    assert call.answer["end"] == "left"


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("last", "end"), [(b"data: [DONE]\n\n", "whole"), (b'data: "[DONE]"\n\n', "left")], ids=["last event", "another"]
)
def test_stream_abandoned_after_its_last_event_is_complete(
    log: AgentLog, last: bytes, end: str, is_async: bool
) -> None:
    pieces = [b"data: {}\n\n", last, b": the body goes on\n\n"]

    class Body(httpx.SyncByteStream, httpx.AsyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield from pieces

        async def __aiter__(self) -> AsyncIterator[bytes]:
            for each in pieces:
                yield each

    def answered(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Body())

    def agent(run: Run) -> None:
        client = run.client(httpx.Client(transport=httpx.MockTransport(answered)))
        with run.step("ask"), client.stream("GET", "http://model/v1") as response:
            assert list(itertools.islice(response.iter_bytes(), 2)) == pieces[:2]

    async def agent_async(run: Run) -> None:
        client = run.client(httpx.AsyncClient(transport=httpx.MockTransport(answered)))
        async with run.step("ask"), client.stream("GET", "http://model/v1") as response:
            taken = response.aiter_bytes()
            assert [await anext(taken), await anext(taken)] == pieces[:2]

    run = log.run("a")
    driven(run, agent_async if is_async else agent)
    (call,) = log.recording(run.id).steps[0].calls
    assert call.answer["end"] == end


def test_client_wrapped_twice_is_recorded_once(log: AgentLog) -> None:
    """It is also recorded once if the outer run records it."""

    def agent(run: Run) -> Any:
        outer = run.client(httpx.Client(transport=httpx.MockTransport(lambda request: httpx.Response(200, text="x"))))
        with run.step("ask"):
            found = run.client(outer).get("http://model/v1").text
        with run.step("delegate"):
            return found + run.child("inner").drive(lambda inner: inner.client(outer).get("http://model/v2").text)

    run = log.run("a")
    assert run.drive(agent) == "xx"
    recording = log.recording(run.id)
    assert [len(step.calls) for step in recording.steps] == [1, 1]
    assert [[len(step.calls) for step in each.steps] for each in recording.children.values()] == [[1]]
    assert log.replay(run.id, agent).is_same


@pytest.mark.parametrize("where", ["head", "body"])
def test_timeout_set_by_the_agent_recurs_in_a_replay(log: AgentLog, where: str) -> None:
    class Body(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"data: {}\n\n"
            await asyncio.Event().wait()

    async def answered(request: httpx.Request) -> httpx.Response:
        if where == "head":
            await asyncio.Event().wait()
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Body())

    async def agent(run: Run) -> list[str]:
        client, got = run.client(httpx.AsyncClient(transport=httpx.MockTransport(answered))), list[str]()
        async with run.step("ask"):
            try:
                # Of the body it begins with the first piece: a busy machine may need longer for that.
                async with (
                    asyncio.timeout(0.05 if where == "head" else None) as limit,
                    client.stream("GET", "http://model/v1") as response,
                ):
                    async for piece in response.aiter_text():
                        got.append(piece)
                        limit.reschedule(asyncio.get_running_loop().time() + 0.05)
            except TimeoutError:
                got.append("late")
        return got

    run = log.run("a")
    assert driven(run, agent) == ["data: {}\n\n", "late"][where == "head" :]
    replayed = log.replay(run.id, agent)
    assert replayed.is_same
    assert replayed.now.output == log.recording(run.id).output


CHILD = """
import sys
import refold
import refold.agents.golden.runner
import refold_tests.sdk_ways
from test_clients import Way, agent_of, driven
from refold_tests.model_server import ModelServer

server = ModelServer()
server.url = sys.argv[2]
with refold.open(sys.argv[1]) as log:
    run = log.run("a", id="killed", state={"answer": None})
    driven(run, agent_of(Way(sys.argv[3], sys.argv[4] == "True", "stream"), server))
"""


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("sdk", ["openai", "anthropic"])
@pytest.mark.outside
def test_run_killed_in_a_stream_resumes(
    server: ModelServer, tmp_path: Path, sdk: str, is_async: bool, child: Callable[..., Child],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    url, way = f"file:{tmp_path / 'log'}", Way(sdk, is_async, "stream")
    server.hold, server.held = threading.Event(), threading.Event()
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    asking = child(CHILD, url, server.url, sdk, is_async)
    try:
        assert server.held.wait(240), "the child did not come into its stream"
        asking.kill()
    finally:
        server.hold.set()
        server.hold = None
    assert len(server.requests) == 1
    with refold.open(url) as log:
        again = log.run("a", resume="killed")
        answer = driven(again, agent_of(way, server))
        assert len(server.requests) == 2
        assert answer == bare(way, server)
        assert log.replay("killed", agent_of(way, server)).is_same
