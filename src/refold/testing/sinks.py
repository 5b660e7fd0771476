"""The conformance suite for sinks: pytest tests that every sink of states must pass. Needs pytest.

import pytest
from refold.testing.sinks import StoreContent, SinkConformance, Store

class MyStore(Store): ...           # where a test's sink writes, and how the test reads it

class TestMySink(SinkConformance):
    @pytest.fixture
    def store(self, tmp_path):
        return MyStore(tmp_path)

After any fault, the store's final content must equal a rebuild at its cut, with the history up to it. The suite writes
to an embedded log, and lets the sink follow it: from the start, after kills of its process, together with another
process on the same store, across new definitions, and while the store refuses writes. `ServedConformance` also kills
the store's server. REFOLD_SEED repeats a run; REFOLD_FAULT_ROUNDS is the number of kills.

The PostgreSQL sink passes it, and the example docs/examples/sqlite_sink.py.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from refold.sinks.feed import Feed
from refold.sinks.port import Batch, Load, Sink, SinkBusy, SinkRefused
from refold.sinks.run import SinkReport, SinkWatch, keep_up
from refold.streams import child_process
from refold.streams.cut import Cut
from refold.streams.log.port import LogPort
from refold.streams.open import log_from_port, process_context
from refold.streams.rebuild.rebuild import rebuild
from refold.streams.view import StateView
from refold.testing.sink_samples import FollowedLog, SinkSamples

__all__ = ["FollowedLog", "ServedConformance", "SinkConformance", "SinkSamples", "Store", "StoreContent"]

PATIENCE_S = 60.0

# Runs the sink in a process that is killed, one for each line of input. The line is the maximum of changes in a batch.
FOLLOWER_PROGRAM = """
import os, sys
from threading import Event
from refold.sinks.registry import open_sink
from refold.sinks.run import keep_up
from refold.streams.open import open_port

def follow(url, name, to, changes_max):
    log = open_port(url, read_only=True)
    keep_up(log, open_sink(name, to), follow=True, stop=Event(), poll_s=0.01, changes_max=int(changes_max))

for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        try:
            follow(*sys.argv[1:4], line)
        finally:
            os._exit(1)
    print(pid, flush=True)
    print("killed" if os.WIFSIGNALED(os.waitpid(pid, 0)[1]) else "ended by itself", flush=True)
"""


@dataclass(frozen=True, slots=True)
class StoreContent:
    """A store's content. For each entity: version, state hash (hex), fields in JSON form, and links. For each mutation:
    (entity, version, field, op, key, old, new, observation), with values in JSON form.
    """

    cut: Cut
    states: dict[str, tuple[int, str, dict[str, Any], list[dict[str, Any]]]]
    history: list[tuple[Any, ...]]


class Store(ABC):
    """A store for one test.

    Attributes:
        name, url: The arguments of `refold sink`.
        keeps_history: Whether the store keeps the history of entities too.
    """

    name: str
    url: str
    keeps_history = True

    @abstractmethod
    def open(self) -> Sink:
        """Open the sink again."""

    @abstractmethod
    def content(self) -> StoreContent:
        """Read the store's content without the sink."""

    @abstractmethod
    def refusing(self) -> AbstractContextManager[None]:
        """Within the block the store refuses writes temporarily: each write of the sink must raise SinkBusy."""

    def restart(self) -> None:
        """Kill the store's server, and start it again; for ServedConformance."""
        raise NotImplementedError


@contextmanager
def opened(store: Store) -> Iterator[Sink]:
    sink = store.open()
    try:
        yield sink
    finally:
        sink.close()


def bring_up(followed: FollowedLog, store: Store, changes_max: int = 5_000) -> SinkReport:
    """Open the sink, write everything up to the log's end, and close it, as one process does."""
    with followed.reader() as log, opened(store) as sink:
        return keep_up(log, sink, follow=False, stop=threading.Event(), changes_max=changes_max)


def assert_equal(log: LogPort, store: Store, *, at_end: bool = True) -> None:
    """Assert that the store's content equals a rebuild at its cut.

    Args:
        at_end: The cut must be the log's end: all its records, by all its definitions in effect.
    """
    log.refresh()
    content = store.content()
    if at_end:
        assert content.cut.offsets == log.ends()
        # The log's last records of definitions may have no effect, and be written later: a second activation of a type.
        assert content.cut.types_digest == log.registry.digest(len(log.registry))
    assert content.cut.types_digest == log.registry.digest(content.cut.schemas)
    view = StateView(log, content.cut, rebuild(log, content.cut, parallel=False))
    whole = log_from_port(log, {}, process_context())
    expected, history = {}, []
    for name in view:
        entity = view[name]
        links = [{key: value for key, value in each.items() if key != "by"} for each in entity.links]
        expected[name] = (entity.version, entity.state_hash, entity.shown(), links)
        for row in whole.history(name, until=content.cut, python=False):
            history.append((name, row.version, row.field, row.op, row.key, row.old, row.new, row.observation))
    assert content.states == expected
    if store.keeps_history:
        assert sorted(content.history, key=repr) == sorted(history, key=repr)


@contextmanager
def killed_followers(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The process that runs FOLLOWER_PROGRAM."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", FOLLOWER_PROGRAM, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, env=child_process.environment(),
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


class SinkConformance(SinkSamples):
    """Subclass it as a test class, with a fixture `store` that returns a `Store`."""

    def test_empty_log_gives_an_empty_store(self, followed: FollowedLog, store: Store) -> None:
        bring_up(followed, store)
        with followed.reader() as log:
            assert_equal(log, store)
        assert store.content().states == {}

    def test_store_equals_the_log_after_every_write(self, followed: FollowedLog, store: Store, seed: int) -> None:
        """With late observations, repeats, retractions, clears and links, and with cached and new processes."""
        rng = random.Random(seed)
        observations = self.history(seed, 260)
        for number in range(90):
            observations.insert(rng.randrange(len(observations)), self.assertion(rng.choice(self.names), number))
        with followed.reader() as log, opened(store) as sink:
            feed_size = rng.choice((1, 7, 5_000))
            while observations:
                size = rng.choice((5, 60, 120))
                followed.write(observations[:size])
                del observations[:size]
                if rng.random() < 0.5:
                    bring_up(followed, store, rng.choice((1, 7, 5_000)))
                else:
                    keep_up(log, sink, follow=False, stop=threading.Event(), changes_max=feed_size)
                assert_equal(log, store)

    def test_batch_is_at_an_exact_cut(self, followed: FollowedLog, store: Store, seed: int) -> None:
        followed.write(self.history(seed, 40))
        bring_up(followed, store)
        for number in range(0, 60, 12):
            followed.write([self.assertion(self.names[each % 6], each) for each in range(number, number + 12)])
        with followed.reader() as log, opened(store) as sink:
            keep_up(
                log, sink, follow=False, stop=threading.Event(), changes_max=3,
                watch=SinkWatch(wrote=lambda taken: assert_equal(log, store, at_end=False)),
            )  # fmt: skip
            assert_equal(log, store)

    def test_new_definition_takes_effect(self, followed: FollowedLog, store: Store, seed: int) -> None:
        changed = self.definition(last={"type": "long", "refold.reducer": "max"})
        more = self.definition(
            last={"type": "long", "refold.reducer": "max"}, more={"type": "string", "refold.reducer": "latest"}
        )
        followed.write(
            [*self.history(seed, 150), *(self.assertion(self.names[0], at, last=each) for at, each in ((0, 9), (1, 3)))]
        )
        with followed.reader() as log, opened(store) as sink:
            keep_up(log, sink, follow=False, stop=threading.Event())
            assert_equal(log, store)
            followed.register(changed)
            keep_up(log, sink, follow=False, stop=threading.Event())
            assert_equal(log, store)
            followed.write(self.history(seed + 1, 80), changed)
            keep_up(log, sink, follow=False, stop=threading.Event())
            assert_equal(log, store)
            followed.write([self.assertion(self.names[0], 7, last=5)], changed)
            followed.register(more)
            followed.write(
                [self.assertion(self.names[0], 8, more="x"), self.assertion(self.names[0], 9, last=50)], more
            )
            bring_up(followed, store, changes_max=1)
            assert_equal(log, store)

    def test_log_with_earlier_definitions_is_loaded(self, followed: FollowedLog, store: Store, seed: int) -> None:
        changed = self.definition(last={"type": "long", "refold.reducer": "max"})
        followed.write([*self.history(seed, 100), self.assertion(self.names[-1], 1)])
        followed.register(changed)
        followed.write(self.history(seed + 1, 50), changed)
        bring_up(followed, store)
        with followed.reader() as log:
            assert_equal(log, store)

    # Two at once, other logs

    def test_one_of_two_concurrent_writers_wins(self, followed: FollowedLog, store: Store, seed: int) -> None:
        followed.write(self.history(seed, 50))
        bring_up(followed, store)
        followed.write(self.history(seed + 1, 50))
        with followed.reader() as log, opened(store) as one, opened(store) as other:
            made: list[Batch] = []
            for sink in (one, other):
                position = sink.position()
                assert position is not None
                found = Feed(log, sink.stored).next(position)
                assert isinstance(found, Batch)
                made.append(found)
            one.write(made[0])
            with pytest.raises(SinkBusy):
                other.write(made[1])
            assert_equal(log, store, at_end=False)
            keep_up(log, other, follow=False, stop=threading.Event())
            assert_equal(log, store)

    def test_one_of_two_concurrent_loads_wins(self, followed: FollowedLog, store: Store, seed: int) -> None:
        followed.write(self.history(seed, 50))
        with followed.reader() as log, opened(store) as one, opened(store) as other:
            loads = [Feed(log, sink.stored).first() for sink in (one, other)]
            one.load(loads[0])
            with pytest.raises(SinkBusy):
                other.load(loads[1])
            assert_equal(log, store)

    def test_another_logs_cut_is_refused_by_name(self, followed: FollowedLog, store: Store) -> None:
        with followed.reader() as log, opened(store) as sink:
            position = Cut(bytes(16), dict.fromkeys(log.ends(), 0), 0, log.registry.digest(0))
            sink.load(Load(None, position, None, lambda: iter(()), lambda: iter(()), 0, {}))
            with pytest.raises(SinkRefused, match=log.log_id.hex()):
                keep_up(log, sink, follow=True, stop=threading.Event())

    # Faults

    def test_kill_at_any_moment_loses_nothing(
        self, followed: FollowedLog, store: Store, seed: int, fault_rounds: int
    ) -> None:
        rng = random.Random(seed)
        with killed_followers(followed.url, store.name, store.url) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for number in range(fault_rounds):
                followed.write(self.history(seed + number, 120))
                process.stdin.write(rng.choice(("1\n", "10\n", "50\n")))
                process.stdin.flush()
                pid = int(process.stdout.readline())
                time.sleep(rng.uniform(0, 0.4))  # the moment
                os.kill(pid, signal.SIGKILL)
                assert process.stdout.readline() == "killed\n"
        bring_up(followed, store)
        with followed.reader() as log:
            assert_equal(log, store)

    def test_store_that_refuses_is_awaited(self, followed: FollowedLog, store: Store, seed: int) -> None:
        followed.write(self.history(seed, 60))
        bring_up(followed, store)
        followed.write(self.history(seed + 1, 60))
        with store.refusing(), following(followed, store) as follower:
            follower.await_true(lambda: follower.report.busy > 1)
            assert follower.report.last_busy
        with following(followed, store) as follower:
            follower.await_end()
        with followed.reader() as log:
            assert_equal(log, store)

    def test_two_concurrent_followers(self, followed: FollowedLog, store: Store, seed: int) -> None:
        with following(followed, store) as one, following(followed, store) as other:
            for number in range(4):
                followed.write(self.history(seed + number, 60))
            one.await_end()
            other.await_end()
        with followed.reader() as log:
            assert_equal(log, store)


class ServedConformance(SinkSamples):
    """For a store with a server, which `Store.restart` kills: subclass it too, with the same fixture."""

    def test_store_killed_at_any_moment_loses_nothing(
        self, followed: FollowedLog, store: Store, seed: int, fault_rounds: int
    ) -> None:
        rng = random.Random(seed)
        with following(followed, store) as follower:
            for number in range(max(2, fault_rounds // 2)):
                followed.write(self.history(seed + number, 120))
                time.sleep(rng.uniform(0, 0.3))  # the moment
                store.restart()
            follower.await_end()
        with followed.reader() as log:
            assert_equal(log, store)


class Follower:
    """A thread that follows a log. It opens the sink again if opening failed."""

    def __init__(self, followed: FollowedLog, store: Store, changes_max: int) -> None:
        self.watch = SinkWatch()
        self.report = self.watch.report
        self.stop = threading.Event()
        self.problem: Exception | None = None
        self._followed, self._store, self._changes_max = followed, store, changes_max
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def await_end(self) -> None:
        """Return when it has reached the log's end. Raises the error that ended the thread, if any."""
        ends = self._followed.log.ends()
        self.await_true(lambda: self.report.position is not None and self.report.position.offsets == ends)

    def await_true(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition. Raises the error that ended the thread, if any."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if self.problem is not None:
                raise self.problem
            assert time.monotonic() < deadline, self.report
            time.sleep(0.01)

    def end(self) -> None:
        self.stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        if self.problem is not None:
            raise self.problem

    def _run(self) -> None:
        while not self.stop.is_set():
            try:
                with self._followed.reader() as log, opened(self._store) as sink:
                    keep_up(
                        log, sink, follow=True, stop=self.stop, watch=self.watch, poll_s=0.01,
                        changes_max=self._changes_max,
                    )  # fmt: skip
            except SinkBusy as error:
                self.report.busy += 1
                self.report.last_busy = str(error)
            except Exception as error:  # raised by the test: a user's sink may raise anything
                self.problem = error
                return


@contextmanager
def following(followed: FollowedLog, store: Store, changes_max: int = 10) -> Iterator[Follower]:
    """Follow the log in a thread until the end of the block.

    Args:
        followed: The log.
        store: Where the sink writes.
        changes_max: The most changes in a batch.

    Raises:
        Exception: The error that ended the thread, if any.
    """
    follower = Follower(followed, store, changes_max)
    try:
        yield follower
    finally:
        follower.end()
