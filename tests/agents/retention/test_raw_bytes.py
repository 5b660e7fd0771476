"""Retention in parallel with recording: every byte on the disks is searched for keys and for what they sealed."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from refold.agents.log import AgentLog, open_log
from refold.agents.retention.classes import days_of
from refold.agents.retention.marks import pin
from refold.agents.retention.sweep import sweep
from refold.avro.errors import Expired
from refold.explorer.cli.main import run
from refold.streams.log.kafka.offsets import KafkaPartition
from refold.testing.kafka import Kafka
from refold_tests.child import Child
from refold_tests.kafka_topics import Broker
from refold_tests.waiting import await_true

SECRET = "what the customer told us "
NOTHING = days_of(["success=0", "failed=0"])
COMPACTED_WITHIN_S = 240

RECORDING = """
import sys
from refold.agents.log import open_log

url, first, secret = sys.argv[1], int(sys.argv[2]), sys.argv[3]
with open_log(url) as log:
    for number in range(first, 1_000_000):
        with log.run("agent", id=f"r{number}", input={"said": secret * 3}, metadata={secret: number}) as run:
            with run.step("only"):
                run.state["said"] = run.model(lambda **given: {"text": secret * 99}, number=number)["text"]
            log.flush()
            print("open", number, flush=True)
            sys.stdin.readline()
        log.flush()
        print("ended", number, flush=True)
        sys.stdin.readline()
"""


class Recorder:
    """A process that records the runs r0, r1, ... in sequence, and waits while each is open and when it has ended."""

    def __init__(self, process: Child) -> None:
        self._process = process
        self._number = 0

    def open(self) -> None:
        """Wait until the next run is open, with a step recorded."""
        self._await("open")

    def end(self) -> None:
        """Wait until the open run has ended."""
        self._await("ended")
        self._number += 1

    def record(self) -> None:
        """Wait until one more run is recorded whole."""
        self.open()
        self.end()

    def stop(self) -> None:
        """End the process where it waits."""
        self._process.process.terminate()
        self._process.process.wait()

    def _await(self, what: str) -> None:
        if (what, self._number) != ("open", 0):
            self._process.say("on")
        assert self._process.line() == f"{what} {self._number}"


def stored(folders: Iterable[Path]) -> bytes:
    """Return every byte below some folders; files may disappear meanwhile."""
    found = []
    for folder in folders:
        for path in folder.rglob("*"):
            try:
                found.append(path.read_bytes() if path.is_file() else b"")
            except FileNotFoundError:
                continue
    return b"".join(found)


def forms(key: bytes) -> list[bytes]:
    """Return a key's bytes in the forms in which they may be written; a part is enough to find it."""
    half = key[:24]
    return [half, key[24:48], half.hex().encode(), base64.b64encode(half)]


def key_of(log: AgentLog, name: str) -> bytes:
    ring = log.vault.ring
    assert ring is not None
    ring.refresh()
    key = ring.get(f"run:{name}")
    assert key is not None
    return key


def test_no_file_contains_expired_data_while_a_recorder_runs(tmp_path: Path, child: Callable[..., Child]) -> None:
    """A process records runs. While each is open its key is noted, and a sweep expires all that have ended."""
    url = f"file:{tmp_path}/log"
    keys: dict[str, bytes] = {}
    with open_log(url) as log:
        log.observe("document/kept", {"kind": "stays"})
        recorder = Recorder(child(RECORDING, url, 0, SECRET))

        def expire() -> list[str]:
            done = sweep(log, log.vault.ring, NOTHING, 1 << 52)
            assert (done.failed, done.remaining) == ({}, 0)
            return done.runs

        for number in range(12):
            name, before = f"r{number}", f"r{number - 1}"
            recorder.open()
            keys[name] = key_of(log, name)
            assert expire() == ([before] if number > 1 else [])
            assert key_of(log, name) == keys[name], "an open run keeps its key"
            recorder.end()
            if number == 0:
                pin(log, log.vault, name)
        recorder.open()
        assert expire() == ["r11"]
        recorder.stop()
        assert log.recording("r0").input == {"said": SECRET * 3}
        for name in [*keys][1:]:
            with pytest.raises(Expired):
                log.recording(name)
        log.snapshot()
        assert log.verify().ok
        whole = stored([tmp_path])
        held = [name for name, key in keys.items() if any(form in whole for form in forms(key))]
    assert held == ["r0"]
    whole = stored([tmp_path])
    assert [name for name, key in keys.items() if any(form in whole for form in forms(key))] == ["r0"]
    assert SECRET.encode() not in whole
    assert "what the customer" not in json.dumps([path.name for path in tmp_path.rglob("*")])


@pytest.mark.kafka
def test_destroyed_key_and_removed_blob_leave_the_brokers_segments_after_compaction(
    kafka_cluster: Callable[..., Kafka],
    tmp_path: Path,
    child: Callable[..., Child],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("REFOLD_MASTER_KEY", base64.b64encode(b"m" * 48).decode())
    kafka = kafka_cluster(data=tmp_path / "kafka")
    url = f"kafka://{kafka.bootstrap}/p?partitions=1"
    broker = Broker(kafka.bootstrap, "p")
    topic, chunks = KafkaPartition("p.keys", 0), KafkaPartition("p.contents", 1)

    def refold(*arguments: str) -> tuple[int, str]:
        status = run([*arguments, "--log", url])
        said = capsys.readouterr()
        return status, said.out + said.err

    recorder = Recorder(child(RECORDING, url, 0, SECRET))
    recorder.record()
    for name, value in (
        ("segment.ms", "500"), ("max.compaction.lag.ms", "500"), ("min.cleanable.dirty.ratio", "0.0"),
        ("delete.retention.ms", "0"), ("file.delete.delay.ms", "1"),
    ):  # fmt: skip
        for each in (topic, chunks):
            broker.alter(each.topic, name, value)
    for _ in range(2):
        recorder.record()
    with open_log(url) as log:
        keys = {f"r{number}": key_of(log, f"r{number}") for number in range(3)}
        pin(log, log.vault, "r0")
        log.flush()
    with broker.reading() as reading:
        raw = [each.value for each in reading.records(topic, 0, broker.end(topic)) if each.value is not None]
        pieces = {each.key: each.value for each in reading.records(chunks, 0, broker.end(chunks)) if each.value}
    wrapped = dict(zip(keys, raw, strict=True))

    def held() -> list[str]:
        whole = stored([tmp_path / "kafka"])
        return [name for name, value in wrapped.items() if value[8:40] in whole]

    def contents_held() -> int:
        whole = stored([tmp_path / "kafka"])
        return sum(value[8:40] in whole for value in pieces.values())

    assert held() == ["r0", "r1", "r2"], "the search finds what is there"
    assert contents_held() == len(pieces) == 3
    status, said = refold("retain", "--check")
    assert (status, said.splitlines()[0]) == (0, "no destroyed key is left in the topic p.keys")
    assert "no removed content is left in kafka://" in said
    status, said = refold("retain", "--apply", "--class", "success=0")
    assert status == 0
    assert "2 runs expired: 2 keys" in said
    assert "2 contents and " in said
    assert "2 removed contents still on the brokers' disks" in said
    assert "2 destroyed keys still on the brokers' disks, in the topic p.keys" in said
    recorder.record()

    def is_dropped() -> bool:
        assert refold("retain", "--apply", "--class", "success=9999")[0] == 0
        return refold("retain", "--check")[0] == 0

    await_true(is_dropped, within_s=COMPACTED_WITHIN_S)
    await_true(lambda: held() == ["r0"], within_s=COMPACTED_WITHIN_S)
    await_true(lambda: contents_held() == 1, within_s=COMPACTED_WITHIN_S)
    recorder.stop()
    with open_log(url) as log:
        assert log.recording("r0").input == log.recording("r3").input == {"said": SECRET * 3}
        for name in ("r1", "r2"):
            with pytest.raises(Expired):
                log.recording(name)
    whole = stored([tmp_path])
    assert not any(form in whole for key in keys.values() for form in forms(key)), "unwrapped, they are nowhere"
    assert SECRET.encode() not in whole
