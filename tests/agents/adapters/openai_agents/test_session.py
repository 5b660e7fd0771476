"""The contract of the SDK's sessions: the same cases over its own SQLiteSession and over RefoldSession."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import agents
import pytest
from agents import Runner, SQLiteSession

import refold
from refold.agents.log import AgentLog
from refold.agents.recorder.run import Run
from refold.openai_agents import RefoldSession
from refold_tests.brokers import SharedKafka
from refold_tests.child import Child
from refold_tests.model_server import model_server
from refold_tests.sdk_agents import DONE, client, desk, mind, processing

pytestmark = pytest.mark.outside

Opened = Callable[..., Any]


def user_message(text: Any) -> Any:
    return {"role": "user", "content": text}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentLog]:
    with refold.open(f"file:{tmp_path_factory.mktemp('sessions') / 'log'}") as log:
        yield log


@pytest.fixture(params=["sqlite", "refold"])
def opened(request: pytest.FixtureRequest, tmp_path: Path, log: AgentLog) -> Iterator[Opened]:
    """Opens sessions of one store."""
    made: list[Any] = []

    def sqlite(name: str, **given: Any) -> Any:
        made.append(SQLiteSession(name, tmp_path / "sessions.db", **given))
        return made[-1]

    def ours(name: str, **given: Any) -> Any:
        return RefoldSession(f"{tmp_path.name} {name}", log, **given)

    yield sqlite if request.param == "sqlite" else ours
    for each in made:
        each.close()


def test_items_keep_their_order(opened: Opened) -> None:
    async def whole() -> None:
        session = opened("a")
        assert await session.get_items() == []
        assert await session.pop_item() is None
        await session.add_items([])
        await session.add_items([user_message(str(n)) for n in range(12)])
        await session.add_items([user_message("twice"), user_message("twice")])
        texts = [each["content"] for each in await session.get_items()]
        assert texts == [*map(str, range(12)), "twice", "twice"]
        assert [each["content"] for each in await opened("a").get_items(3)] == ["11", "twice", "twice"]
        assert await session.get_items(0) == []
        assert len(await session.get_items(-1)) == len(await session.get_items(100)) == 14
        assert await opened("b").get_items() == []

    asyncio.run(whole())


def test_items_are_popped_from_the_end_and_cleared(opened: Opened) -> None:
    async def whole() -> None:
        session, other = opened("a"), opened("a")
        await session.add_items([user_message("1"), user_message("2")])
        assert await other.pop_item() == user_message("2")
        await session.add_items([user_message("3")])
        assert await session.get_items() == await other.get_items() == [user_message("1"), user_message("3")]
        await other.clear_session()
        assert await session.get_items() == []
        assert await session.pop_item() is None
        await session.clear_session()
        await session.add_items([user_message("4")])
        assert await other.get_items() == [user_message("4")]

    asyncio.run(whole())


ITEMS: dict[str, Any] = {
    "order": {"type": "x", "b": 1, "a": [50.0, -0.5, None, True]},
    "long": user_message("ä" * 3000),
    "parts": user_message([{"text": ""}]),
    "marks": {"refold.object": {"a": 1}},
    "number": {"number": 1 << 60},
}


@pytest.mark.parametrize("item", ITEMS.values(), ids=ITEMS)
def test_item_round_trips(opened: Opened, item: Any) -> None:
    async def whole() -> None:
        session = opened("a/#%\n")
        await session.add_items([item])
        assert json.dumps(await session.get_items()) == json.dumps([item])
        assert json.dumps(await session.pop_item()) == json.dumps(item)

    asyncio.run(whole())


def test_session_settings_limit_applies(opened: Opened) -> None:
    async def whole() -> None:
        session = opened("a", session_settings=agents.SessionSettings(limit=2))
        await session.add_items([user_message(str(n)) for n in range(5)])
        assert [each["content"] for each in await session.get_items()] == ["3", "4"]
        assert len(await session.get_items(4)) == 4

    asyncio.run(whole())


def test_concurrent_writers_lose_no_item(opened: Opened) -> None:
    async def whole() -> None:
        first = opened("a")
        sessions = [first, first, opened("a"), opened("a")]
        await asyncio.gather(
            *(each.add_items([user_message(f"{n} {k}") for k in range(3)]) for n, each in enumerate(sessions))
        )
        texts = [each["content"] for each in await sessions[0].get_items()]
        assert sorted(texts) == sorted(f"{n} {k}" for n in range(4) for k in range(3))
        assert all(texts[i : i + 3] == [f"{texts[i][0]} {k}" for k in range(3)] for i in range(0, 12, 3)), "not mixed"
        popped = await asyncio.gather(*(each.pop_item() for each in sessions for _ in range(4)))
        assert sorted(each["content"] for each in popped if each) == sorted(texts), "each is popped once"
        assert popped.count(None) == 4

    asyncio.run(whole())


def test_sdk_agents_continue_a_session(opened: Opened) -> None:
    async def whole(url: str) -> None:
        session = opened("a")
        with model_server() as server, processing():
            server.mind = mind
            async with client(server) as sdk:
                agent = desk(sdk).handoffs[0]
                assert isinstance(agent, agents.Agent)
                assert (await Runner.run(agent, "One.", session=session)).final_output == DONE
                assert (await Runner.run(agent, "Two.", session=session)).final_output == DONE
            asked = server.requests[-1][2]["messages"]
        assert [each["content"] for each in asked][:2] == ["You refund.", "One."]
        assert asked[-1]["content"] == "Two."
        assert len(await session.get_items()) == 4

    asyncio.run(whole(""))


def test_conversation_is_readable_at_any_point_in_time(log: AgentLog) -> None:
    async def whole() -> None:
        session = RefoldSession("past", log)
        await session.add_items([user_message("1"), user_message("2")])
        log.mark("then")
        await session.pop_item()
        await session.clear_session()
        assert len(log.state(session.entity, "@then").fields["items"]) == 2
        assert log.state(session.entity).fields.get("items", {}) == {}

    asyncio.run(whole())


def test_replay_does_not_touch_a_session(log: AgentLog) -> None:
    session = RefoldSession("replayed", log)

    async def agent(run: Run) -> Any:
        with run.step("ask"):
            await session.add_items([user_message("1")])

    run = log.run("desk")
    asyncio.run(run.drive_async(agent))
    replayed = log.replay(run.id, agent)
    assert not replayed.is_same
    assert "used in a replay" in str(replayed.now.failure)
    assert asyncio.run(session.get_items()) == [user_message("1")]


ADDING = """
import asyncio, itertools, sys
from refold.openai_agents import RefoldSession

async def whole():
    session = RefoldSession("s", sys.argv[1])
    for number in itertools.count():
        await session.add_items([{"n": number, "part": part} for part in range(2)])
        print(number, flush=True)

asyncio.run(whole())
"""


def check_killed(url: str, child: Callable[..., Child]) -> None:
    """Kill a process that adds; what it said is there, in order, and no pair is cut."""
    process = child(ADDING, url)
    last = [int(process.line()) for _ in range(3)][-1]
    process.process.kill()
    process.end()
    session = RefoldSession("s", url)
    items: Any = asyncio.run(session.get_items())
    assert items == [{"n": n, "part": part} for n in range(len(items) // 2) for part in range(2)]
    assert len(items) // 2 > last
    assert asyncio.run(session.pop_item()) == items[-1]
    session.close()


@pytest.mark.faults
def test_killed_writer_leaves_whole_changes(tmp_path: Path, child: Callable[..., Child]) -> None:
    check_killed(f"file:{tmp_path / 'log'}", child)


@pytest.mark.faults
def test_killed_writer_on_kafka_leaves_whole_changes(
    kafka: SharedKafka, prefix: str, child: Callable[..., Child]
) -> None:
    check_killed(f"kafka://{kafka.bootstrap}/{prefix}?partitions=2", child)
