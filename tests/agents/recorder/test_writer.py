"""The writer of a run: in order, bounded, durable when it says so, and it always reports what it lost."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from refold.agents.recorder.writer import QUEUE_MAX, RecordingFailed, Writer


class Done:
    """Work that was done, and how much of it was made durable."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.durable = 0
        self.synced = threading.Event()
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def work(self, number: int) -> Callable[[], None]:
        def work() -> None:
            self.may_go_on.wait()
            self.numbers.append(number)

        return work

    def sync(self) -> None:
        self.durable = len(self.numbers)
        self.synced.set()


def test_work_is_ordered_and_durable_after_flush_and_close() -> None:
    done = Done()
    writer = Writer(done.sync, "r")
    for number in range(50):
        writer.put(done.work(number))
    writer.flush()
    assert (done.numbers, done.durable) == (list(range(50)), 50)
    writer.put(done.work(50))
    writer.close()
    assert done.durable == 51
    writer.close()


def test_queued_work_becomes_durable_without_a_flush() -> None:
    done = Done()
    writer = Writer(done.sync, "r")
    writer.put(done.work(0))
    assert done.synced.wait(300)
    assert done.durable == 1
    writer.close()


def test_chunks_are_batched_until_someone_waits_for_them() -> None:
    done = Done()
    writer = Writer(done.sync, "r", gather_s=3600)
    for number in range(3):
        writer.put(done.work(number))
    assert done.numbers == []
    writer.flush()
    assert (done.numbers, done.durable) == ([0, 1, 2], 3)
    for number in range(3, QUEUE_MAX + 20):  # even a full queue does not wait
        writer.put(done.work(number))
    writer.flush()
    writer.put(done.work(QUEUE_MAX + 20))
    writer.close()
    assert done.durable == QUEUE_MAX + 21


def test_settled_work_is_synced_by_the_next_flush() -> None:
    done = Done()
    writer = Writer(done.sync, "r", gather_s=3600)
    for number in range(3):
        writer.put(done.work(number))
        writer.await_written(done.work(number + 10))
    assert (done.numbers, done.durable) == ([0, 10, 1, 11, 2, 12], 0)
    writer.put(done.work(20))
    writer.close()
    assert done.durable == 7


def test_settled_work_becomes_durable_soon_without_a_flush() -> None:
    done = Done()
    writer = Writer(done.sync, "r")
    writer.put(done.work(0))
    writer.await_written(lambda: None)
    assert done.synced.wait(300)
    assert done.durable == 1
    writer.close()


def test_failed_chunk_raises_in_settle() -> None:
    writer = Writer(lambda: None, "r")

    def fails() -> None:
        raise OSError("disk full")

    with pytest.raises(RecordingFailed, match="disk full"):
        writer.await_written(fails)
    with pytest.raises(RecordingFailed, match="disk full"):
        writer.close()


def test_full_queue_blocks_the_agent_and_loses_nothing() -> None:
    done = Done()
    done.may_go_on.clear()
    writer = Writer(done.sync, "r")
    count, put = QUEUE_MAX + 20, []

    def agent() -> None:
        for number in range(count):
            writer.put(done.work(number))
            put.append(number)

    thread = threading.Thread(target=agent)
    thread.start()
    while len(put) < QUEUE_MAX:
        assert thread.is_alive()
    thread.join(0.2)
    assert len(put) <= QUEUE_MAX + 1, "one is under way, the others wait in the queue"
    done.may_go_on.set()
    thread.join()
    writer.close()
    assert done.numbers == list(range(count))


def test_failed_work_stops_the_writer_and_raises_in_every_caller() -> None:
    done = Done()
    done.may_go_on.clear()
    writer = Writer(done.sync, "r")

    def fails() -> None:
        done.may_go_on.wait()
        raise OSError("disk full")

    writer.put(fails)
    writer.put(done.work(1))
    done.may_go_on.set()
    with pytest.raises(RecordingFailed, match="disk full"):
        writer.flush()
    with pytest.raises(RecordingFailed, match="disk full"):
        writer.put(done.work(2))
    for _ in range(2):
        with pytest.raises(RecordingFailed, match="disk full"):
            writer.close()
    assert done.numbers == []


def test_failure_raises_in_blocked_callers() -> None:
    begun, heard = threading.Event(), threading.Event()
    writer = Writer(lambda: None, "r")

    def fails() -> None:
        begun.wait()
        raise OSError("disk full")

    writer.put(fails)

    def agent() -> None:
        try:
            while True:
                writer.put(lambda: None)
        except RecordingFailed:
            heard.set()

    thread = threading.Thread(target=agent)
    thread.start()
    begun.set()
    assert heard.wait(300)
    thread.join()


def test_failed_sync_raises() -> None:
    def sync() -> None:
        raise OSError("disk full")

    writer = Writer(sync, "r")
    with pytest.raises(RecordingFailed, match="disk full"):
        writer.flush()
    with pytest.raises(RecordingFailed, match="disk full"):
        writer.close()


def test_closed_writer_accepts_nothing() -> None:
    done = Done()
    writer = Writer(done.sync, "r")
    writer.close()
    with pytest.raises(RecordingFailed, match="has ended"):
        writer.put(done.work(0))
    with pytest.raises(RecordingFailed, match="has ended"):
        writer.flush()
    assert done.numbers == []


def test_accepted_work_is_done_when_many_threads_put_during_close() -> None:
    done, taken = Done(), []
    writer = Writer(done.sync, "r")

    def agent(first: int) -> None:
        for number in range(first, first + 2000):
            try:
                writer.put(done.work(number))
            except RecordingFailed:
                return
            taken.append(number)

    threads = [threading.Thread(target=agent, args=(each * 10_000,)) for each in range(4)]
    for thread in threads:
        thread.start()
    while len(taken) < 20:
        pass
    writer.close()
    for thread in threads:
        thread.join()
    assert sorted(done.numbers) == sorted(taken)
    assert done.durable == len(taken)
