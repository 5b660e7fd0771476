"""The store of the Claude Agent SDK's sessions: the SDK's own contracts, the SDK itself, laws and kills."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import claude_agent_sdk as sdk
import pytest
from claude_agent_sdk import ClaudeAgentOptions, InMemorySessionStore, fold_session_summary, query
from claude_agent_sdk.testing import run_session_store_conformance
from hypothesis import given, settings
from hypothesis import strategies as st

import refold
from refold.agents.log import AgentLog
from refold.agents.recordings.fields import Fields
from refold.avro.errors import InputError
from refold.claude_agent_sdk import RefoldSessionStore
from refold_tests.brokers import SharedKafka
from refold_tests.child import Child
from refold_tests.tree import ROOT

pytestmark = pytest.mark.outside  # it imports the SDK

CLI = ROOT / "tests" / "support" / "refold_tests" / "claude_cli.py"
KEY: Any = {"project_key": "p", "session_id": "s"}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentLog]:
    with refold.open(f"file:{tmp_path_factory.mktemp('sessions') / 'log'}") as log:
        yield log


def entry(**given: Any) -> Any:
    return {"type": "x", **given}


class Apart(RefoldSessionStore):
    """A store whose projects are its own: many of them share a log."""

    numbers = itertools.count()

    def __init__(self, log: AgentLog) -> None:
        super().__init__(log, runs=False)
        self._own = f"{next(self.numbers)} "

    def _key(self, key: Any) -> Any:
        return key | {"project_key": self._own + key["project_key"]}

    async def append(self, key: Any, entries: Any) -> None:
        await super().append(self._key(key), entries)

    async def load(self, key: Any) -> Any:
        return await super().load(self._key(key))

    async def list_session_summaries(self, project_key: str) -> Any:
        return await super().list_session_summaries(
            project_key if project_key.startswith(self._own) else self._own + project_key
        )

    async def list_sessions(self, project_key: str) -> Any:
        return await super().list_sessions(self._own + project_key)

    async def delete(self, key: Any) -> None:
        await super().delete(self._key(key))

    async def list_subkeys(self, key: Any) -> Any:
        return await super().list_subkeys(self._key(key))


def test_store_keeps_the_sdk_contracts(log: AgentLog) -> None:
    asyncio.run(run_session_store_conformance(lambda: Apart(log)))


def test_store_keeps_the_sdk_contracts_on_kafka(kafka: SharedKafka, prefix: str) -> None:
    with refold.open(f"kafka://{kafka.bootstrap}/{prefix}?partitions=2") as log:
        asyncio.run(run_session_store_conformance(lambda: Apart(log)))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec=None, exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8,
)  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(st.lists(st.dictionaries(st.text() | st.just("refold.line"), JSON, max_size=4), min_size=1, max_size=4))
def test_any_entry_round_trips(log: AgentLog, entries: list[Any]) -> None:
    async def whole() -> None:
        store = Apart(log)
        key = {"project_key": "any", "session_id": "s"}
        plain = [{name: value for name, value in each.items() if name != "uuid"} for each in entries]
        await store.append(key, plain)
        assert json.dumps(await store.load(key)) == json.dumps(plain)

    asyncio.run(whole())


def test_non_object_entries_are_refused(log: AgentLog) -> None:
    store = Apart(log)
    for wrong in ([1], {"a": object()}, {"a": float("nan")}):
        with pytest.raises(InputError, match="entry 1"):
            asyncio.run(store.append(KEY, [entry(), wrong]))
    assert asyncio.run(store.load(KEY)) is None
    with pytest.raises(InputError, match="subpath is empty"):
        asyncio.run(store.load(KEY | {"subpath": ""}))


def test_repeated_batch_adds_nothing(log: AgentLog) -> None:
    async def whole() -> None:
        store = Apart(log)
        batch = [entry(uuid="1", n=1), entry(uuid="2", n=2)]
        await store.append(KEY, batch)
        await store.append(KEY, batch)
        await store.append(KEY, [entry(uuid="2", n=2), entry(uuid="3", n=3)])
        await store.append(KEY | {"subpath": "subagents/agent-1"}, [entry(uuid="1", n=1)])
        found: Any = await store.load(KEY)
        assert [each["n"] for each in found] == [1, 2, 3]

    asyncio.run(whole())


def titled(number: int) -> Any:
    return entry(customTitle=f"{number}", timestamp=f"2026-01-01T00:00:{number:02d}.000Z")


def test_concurrent_appends_of_two_programs(tmp_path: Path) -> None:
    """Whatever they read before they wrote, the summary is that of the transcript in the log's order."""
    url = f"file:{tmp_path / 'log'}"

    async def whole() -> None:
        with RefoldSessionStore(url, runs=False) as one, RefoldSessionStore(one.log, runs=False) as other:
            for number in range(3):
                await asyncio.gather(one.append(KEY, [titled(number)]), other.append(KEY, [titled(10 + number)]))
            # a program that has not read the last change
            stale = RefoldSessionStore(one.log, runs=False)
            fold = stale._fold(next(iter(one._sessions)))
            await one.append(KEY, [titled(30)])
            await asyncio.to_thread(stale._append_to, fold, None, [titled(31)], [titled(31)])
            for _ in range(2):
                [found] = await one.list_session_summaries("p")
                entries: Any = await other.load(KEY)
                assert found["data"] == fold_session_summary(None, KEY, entries)["data"]
                assert found["data"]["custom_title"] == entries[-1]["customTitle"]
                await other.append(KEY, [titled(40)])

    asyncio.run(whole())


def test_deleted_session_is_in_earlier_states(tmp_path: Path) -> None:
    async def whole() -> None:
        with RefoldSessionStore(f"file:{tmp_path / 'log'}") as store:
            await store.append(KEY, [entry(n=1)])
            store.log.mark("then")
            await store.delete(KEY)
            await store.delete(KEY)
            entity = "claude_session/p#s"
            then = Fields(store.log.state(entity, "@then"), store.log.vault)
            assert then.exact("entries") == [entry(n=1)]
            assert "entries" not in store.log.state(entity).fields
            assert store.log.state(entity).version == 2
            await store.append(KEY, [entry(n=2)])
            assert await store.load(KEY) == [entry(n=2)]
            assert [each["session_id"] for each in await store.list_sessions("p")] == ["s"]

    asyncio.run(whole())


# The SDK itself, with a stand-in for its command line


def options(store: Any, tmp_path: Path, **more: Any) -> ClaudeAgentOptions:
    cwd = tmp_path / "work"
    cwd.mkdir(exist_ok=True)
    return ClaudeAgentOptions(
        session_store=store, cli_path=CLI, cwd=cwd, env={"CLAUDE_CONFIG_DIR": str(tmp_path / "config")}, **more
    )


async def run_query(prompt: str, given: ClaudeAgentOptions) -> tuple[str, str | None]:
    """Return the session of one query, and its result."""
    found = [message async for message in query(prompt=prompt, options=given)]
    assert not [each for each in found if isinstance(each, sdk.MirrorErrorMessage)]
    [result] = [each for each in found if isinstance(each, sdk.ResultMessage)]
    return result.session_id, result.result


def test_sdk_session_is_stored_resumed_and_recorded_as_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "config"))
    url = f"file:{tmp_path / 'log'}"

    async def whole() -> None:
        reference = InMemorySessionStore()
        async with RefoldSessionStore(url) as store:
            both = Both(store, reference)
            session, said = await run_query("first", options(both, tmp_path))
            assert said == "turn 1"
            again = options(both, tmp_path, resume=session)
            assert await run_query("delegate PLANTED", again) == (session, "turn 2"), (
                "it has the first turn from the store"
            )
            key: Any = {"project_key": (await both.projects())[0], "session_id": session}
            assert await store.load(key) == await reference.load(key)
            assert len(await store.load(key) or ()) == 8
            assert await store.list_subkeys(key) == ["subagents/agent-a1"]
            ours, theirs = [await each.list_session_summaries(key["project_key"]) for each in (store, reference)]
            assert [each["data"] for each in ours] == [each["data"] for each in theirs]
        with refold.open(url) as log:
            runs = {run.steps: run.run for run in log.runs() if run.agent == "claude-code"}
            assert sorted(runs) == [1, 4], (
                "a subagent's run, and the session's with a step for each message of the model"
            )
            shown = Fields(log.state(f"action/{runs[4]}#1.1"), log.vault)
            assert shown.opened("output") == "out 1"
            assert log.verify().mismatches == []
        everything = b"".join(path.read_bytes() for path in (tmp_path / "log").rglob("*") if path.is_file())
        assert b"PLANTED" not in everything, "content is sealed in the session, and in the run"

    asyncio.run(whole())


class Both(InMemorySessionStore):
    """Appends to a store and to the SDK's own; the rest is answered by the first."""

    def __init__(self, store: Any, reference: InMemorySessionStore) -> None:
        super().__init__()
        self.store, self.reference = store, reference

    async def append(self, key: Any, entries: Any) -> None:
        await self.store.append(key, entries)
        await self.reference.append(key, entries)

    async def load(self, key: Any) -> Any:
        return await self.store.load(key)

    async def list_subkeys(self, key: Any) -> Any:
        return await self.store.list_subkeys(key)

    async def projects(self) -> list[str]:
        return [key.split("/")[0] for key in self.reference._store]


APPENDING = """
import asyncio, itertools, sys
from refold.agents.recordings.fields import Fields
from refold.claude_agent_sdk import RefoldSessionStore

async def whole():
    store = RefoldSessionStore(sys.argv[1])
    for number in itertools.count():
        key = {"project_key": "p", "session_id": str(number // 3)}
        await store.append(key, [{"type": "x", "n": number, "part": part} for part in range(2)])
        print(number, flush=True)

asyncio.run(whole())
"""


async def appended(store: RefoldSessionStore) -> AsyncIterator[Any]:
    sessions = sorted((each["session_id"] for each in await store.list_sessions("p")), key=int)
    for session in sessions:
        for each in await store.load({"project_key": "p", "session_id": session}) or ():
            yield each


def check_killed(url: str, child: Callable[..., Child]) -> None:
    """Kill a process that appends; what it said is there, in order, and no batch is cut."""
    process = child(APPENDING, url)
    last = [int(process.line()) for _ in range(5)][-1]
    process.process.kill()
    process.end()

    async def whole() -> None:
        with RefoldSessionStore(url) as store:
            found = [each async for each in appended(store)]
            assert [(each["n"], each["part"]) for each in found] == [(n // 2, n % 2) for n in range(len(found))]
            assert len(found) // 2 > last
            assert store.log.verify().mismatches == []

    asyncio.run(whole())


@pytest.mark.faults
def test_killed_writer_leaves_whole_batches(tmp_path: Path, child: Callable[..., Child]) -> None:
    check_killed(f"file:{tmp_path / 'log'}", child)


@pytest.mark.faults
def test_killed_writer_on_kafka_leaves_whole_batches(
    kafka: SharedKafka, prefix: str, child: Callable[..., Child]
) -> None:
    check_killed(f"kafka://{kafka.bootstrap}/{prefix}?partitions=2", child)
