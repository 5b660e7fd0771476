"""Users' agents see committed changes only, each until it is done."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupState
from confluent_kafka.admin import AdminClient

from refold.streams.deadline import Deadline
from refold.streams.log.kafka.offsets import TopicPlace
from refold_tests.brokers import SharedKafka
from refold_tests.child import Child
from refold_tests.hosted import change, change_codec
from refold_tests.kafka_topics import Broker
from refold_tests.waiting import await_true

SILENT_S = 60.0
OUT_S = 15.0
CODE = "from refold_tests.hosted import main; main()"
Start = Callable[..., Child]


class Followed:
    """A `.changes` of one partition, and the worker that follows it."""

    def __init__(self, kafka: SharedKafka, prefix: str, child: Start, folder: Path) -> None:
        self.broker = Broker(kafka.bootstrap, prefix)
        # Compressed as what the fold writes.
        self.place = TopicPlace(self.broker.topic("changes", compression_type="lz4"), 0)
        self._child = child
        self._folder = folder
        self._codec = change_codec()

    def commit(self, *versions: int, end: str = "commit") -> None:
        """Write changes of document/a in one transaction."""
        self.broker.transaction(self.place, self._encoded(versions), end=end, key=b"document/a")

    def start(self, monkeypatch: pytest.MonkeyPatch, poison: str = "", instance: str = "one") -> Child:
        monkeypatch.setenv("REFOLD_TEST_POISON", poison)
        return self._child(CODE, self.broker.bootstrap, self.broker.prefix, self._folder / instance,
                           "refold_tests.following_agents", instance)  # fmt: skip

    def _encoded(self, versions: Iterable[int]) -> list[bytes]:
        return [self._codec.encode(change("a", version)) for version in versions]


@pytest.fixture
def followed(kafka: SharedKafka, prefix: str, child: Start, tmp_path: Path) -> Followed:
    return Followed(kafka, prefix, child, tmp_path)


def begun(followed: Followed, monkeypatch: pytest.MonkeyPatch, poison: str = "") -> Child:
    """A worker that says something. Behind a crash Faust's consumer now and then never comes back into its group: such
    a process is killed and started again here, as whoever supervises it has to."""
    for _ in range(3):
        process = followed.start(monkeypatch, poison)
        assert process.process.stdout is not None
        if select.select([process.process.stdout], [], [], SILENT_S)[0]:
            return process
        print(f"silent for {SILENT_S} s, started again")
        process.kill()
    raise AssertionError("three workers in a row said nothing")


def ended(process: Child) -> tuple[list[str], int]:
    """What else it says, and its exit status."""
    lines = []
    while line := process.line():
        lines.append(line)
    return lines, process.process.wait(300)


def failed_at(followed: Followed, monkeypatch: pytest.MonkeyPatch, poison: str) -> tuple[list[str], int]:
    """What a worker says until an agent of its fails at a change. One that falls silent is started again, too."""
    for _ in range(3):
        process = begun(followed, monkeypatch, poison)
        with ThreadPoolExecutor(1) as pool:
            said = pool.submit(ended, process)
            try:
                return said.result(SILENT_S)
            except TimeoutError:
                print(f"silent for {SILENT_S} s, started again")
                process.kill()
    raise AssertionError("three workers in a row did not end")


def stopped(process: Child) -> tuple[list[str], int]:
    os.kill(process.process.pid, signal.SIGTERM)
    return ended(process)


def test_aborted_and_open_transactions_are_never_seen(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    followed.commit(101, 102, end="abort")
    followed.commit(1)
    followed.commit(103, end="abort")
    followed.commit(2, 3)
    process = followed.start(monkeypatch)
    assert [process.line() for _ in range(3)] == ["saw document/a v1", "saw document/a v2", "saw document/a v3"]
    followed.commit(104, end="abort")
    followed.commit(4)
    assert process.line() == "saw document/a v4"
    still_open = followed.broker.transaction(
        followed.place, [change_codec().encode(change("a", 105))], end="open", key=b"document/a"
    )
    assert stopped(process) == (["drained"], 0)
    still_open.abort_transaction(20)
    followed.broker.settle(followed.place)
    followed.commit(5)
    again = followed.start(monkeypatch)
    assert again.line() == "saw document/a v5"
    assert stopped(again) == (["drained"], 0)


def test_the_folder_is_made_with_those_above_it(
    kafka: SharedKafka, prefix: str, child: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = Followed(kafka, prefix, child, tmp_path / "not" / "there")
    followed.commit(1)
    process = followed.start(monkeypatch)
    assert process.line() == "saw document/a v1"
    assert stopped(process) == (["drained"], 0)


def test_what_fails_while_it_starts_ends_it_as_a_failure(
    followed: Followed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "one" / "faust").mkdir(parents=True)
    (tmp_path / "one" / "faust" / "v1").write_bytes(b"")  # where Faust wants a folder
    lines, status = ended(followed.start(monkeypatch))
    assert status == 2
    assert lines[-1].startswith("failed: ")
    assert str(tmp_path / "one" / "faust" / "v1") in lines[-1]


@pytest.mark.timeout(900)
def test_a_change_that_an_agent_fails_on_comes_again_and_none_is_skipped(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in range(1, 7):
        followed.commit(version)
    for _ in range(2):
        lines, status = failed_at(followed, monkeypatch, "document/a v3")
        assert status == 2
        assert [line for line in lines if line.startswith("failed:")] == [lines[-1]]
        assert "sees failed at the change of document/a to v3" in lines[-1]
        assert "saw document/a v4" not in lines
    process = begun(followed, monkeypatch)
    seen = [process.line()]
    while seen[-1] not in {"saw document/a v6", ""}:
        seen.append(process.line())
    first = seen.index("saw document/a v3")
    assert seen[first:] == [f"saw document/a v{version}" for version in range(3, 7)]
    assert stopped(process) == (["drained"], 0)


def test_a_consumer_that_stays_out_of_its_group_ends_the_worker(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that shares out in another way than Faust keeps it out for ever."""
    monkeypatch.setenv("REFOLD_TEST_OUT_OF_GROUP_S", "5")
    group = f"{followed.broker.prefix}.agents"
    stranger = Consumer({
        "bootstrap.servers": followed.broker.bootstrap, "group.id": group, "partition.assignment.strategy": "range",
        "auto.offset.reset": "latest",
    })  # fmt: skip
    try:
        stranger.subscribe([followed.place.topic])
        await_true(lambda: stranger.poll(0.1) is None and bool(stranger.assignment()))
        lines, status = ended(followed.start(monkeypatch))
    finally:
        stranger.close()
    assert (lines, status) == (
        ["drained", f"failed: the agents' consumer has not come into its group {group} for 5 s; start it again"], 2,
    )  # fmt: skip


@pytest.mark.timeout(900)
def test_one_with_nothing_to_do_is_in_its_group(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers share one partition, and nothing is written for longer than one may be out of the group."""
    followed.commit(1)
    processes = [begun(followed, monkeypatch), followed.start(monkeypatch, instance="two")]
    admin, group = AdminClient({"bootstrap.servers": followed.broker.bootstrap}), f"{followed.broker.prefix}.agents"

    def have_joined() -> bool:
        for process in processes:
            process.look()
        described = admin.describe_consumer_groups([group], request_timeout=60)[group].result()
        parts = sorted(len(each.assignment.topic_partitions) for each in described.members)
        return described.state == ConsumerGroupState.STABLE and parts == [0, 1]

    # However long joining takes; from then on neither has a reason to be out.
    await_true(have_joined, within_s=300)
    for process in processes:
        process.say(f"{OUT_S}")
    deadline = Deadline(OUT_S + 2)
    while not deadline.is_past:
        for process in processes:
            process.look()
        time.sleep(0.1)
    for process in processes:
        os.kill(process.process.pid, signal.SIGTERM)
    assert [ended(process)[1] for process in processes] == [0, 0]


def test_a_record_that_is_no_change_ends_the_worker_and_is_not_skipped(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed.commit(1)
    followed.broker.transaction(followed.place, [b"\0\0\0\0\1 no change"], key=b"document/a")
    followed.commit(2)
    for _ in range(2):
        lines, status = ended(followed.start(monkeypatch))
        assert (status, "cannot be read" in lines[-1]) == (2, True)
        assert "saw document/a v2" not in lines
