"""How often a claimed write waits for the disk: a count, independent of the disk's speed."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.agents.log import AgentLog
from refold.agents.recorder.run import Run
from refold.agents.recorder.writer import Writer
from refold.streams.rocks.database import Database

WRITES = 12


@refold.tool(effect="write")
def send(number: int) -> str:
    """Send one."""
    return f"sent {number}"


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentLog]:
    """Yield a log whose runs make nothing durable before somebody waits for it."""
    monkeypatch.setattr("refold.agents.recorder.run_sinks.Writer", partial(Writer, gather_s=3600))
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        yield log


@pytest.fixture
def syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect each sync of the log, of a content and of a key, after it was made.

    A file elsewhere is another test's, whose threads are still here.
    """
    made: list[str] = []

    def counted(name: str, sync: Callable[[Any], None], path_of: Callable[[Any], Path]) -> Callable[[Any], None]:
        def syncing(synced: Any) -> None:
            is_counted = path_of(synced).is_relative_to(tmp_path)
            sync(synced)
            if is_counted:
                made.append(name)

        return syncing

    monkeypatch.setattr(Database, "_sync_log", counted("log", Database._sync_log, lambda synced: Path(synced.path)))
    monkeypatch.setattr(os, "fsync", counted("file", os.fsync, lambda file: Path(f"/proc/self/fd/{file}").readlink()))
    return made


def appended(log: AgentLog) -> int:
    with log.lock:
        return sum(log.port.ends().values())


def test_claimed_write_syncs_twice(log: AgentLog, syncs: list[str]) -> None:
    """Once before it is sent, for the claim and everything recorded before, and once for its result."""
    with log.run("agent", state={"n": 0}) as run:
        send(0)  # the first call registers the type of effects
        syncs.clear()
        for number in range(WRITES):
            with run.step("writes"):
                run.model(len, "abc")
                assert send(number) == f"sent {number}"
                run.state["n"] = number
        assert syncs == ["log"] * 2 * WRITES


def test_short_run_syncs_its_key_and_its_end(log: AgentLog, syncs: list[str]) -> None:
    """Its begin is only written at first, and becomes durable with the end."""
    with log.run("agent") as first, first.step("asks"):
        pass  # this run creates the folder of keys, and registers types
    syncs.clear()
    with log.run("agent", state={"n": 0}) as run:
        assert syncs == ["file", "file"]  # the key, and its folder
        with run.step("asks"):
            run.model(len, "abc")
    assert syncs == ["file", "file", "log"]
    assert log.recording(run.id).status == "ended"


def test_async_write_syncs_twice(log: AgentLog, syncs: list[str]) -> None:
    @refold.tool(effect="write")
    async def post(number: int) -> str:
        return f"posted {number}"

    async def agent(run: Run) -> None:
        await post(0)
        syncs.clear()
        for number in range(WRITES):
            async with run.step("writes"):
                assert await post(number) == f"posted {number}"
        assert syncs == ["log"] * 2 * WRITES

    asyncio.run(log.run("agent").drive_async(agent))


def test_concurrent_flushes_share_a_sync(log: AgentLog, syncs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """While one syncs, the others append and wait; the next sync covers all of them."""
    log.observe("document/0", {"kind": "first"})
    log.flush()
    is_syncing, may_end = threading.Event(), threading.Event()
    sync_log = Database._sync_log

    def held(database: Database) -> None:
        is_syncing.set()
        assert may_end.wait(300)
        sync_log(database)

    monkeypatch.setattr(Database, "_sync_log", held)
    syncs.clear()

    def flushed(number: int) -> None:
        log.observe(f"document/{number}", {"kind": "more"})
        log.flush()

    threads = [threading.Thread(target=flushed, args=(number,)) for number in range(1, 8)]
    threads[0].start()
    assert is_syncing.wait(300)
    for thread in threads[1:]:
        thread.start()
    while appended(log) < 8:
        assert all(thread.is_alive() for thread in threads)
    may_end.set()
    for thread in threads:
        thread.join()
    assert syncs == ["log"] * 2
