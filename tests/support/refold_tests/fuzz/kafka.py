"""Hostile records in every topic of a log on a real broker, and hostile requests to a worker that folds it.

A round is named by its seed:
1. Records are written that a foreign program could write. `.observations` and `.schemas`, which producers may write,
get
   anything the fuzzer makes. The other topics get what their readers must skip: what workers write there is trusted.
2. Observations are appended before, between and after them. A worker runs during the second half.
3. The worker's pages are sent anything the fuzzer makes.
4. Every acknowledged observation must be in the log, `verify` must find nothing, rebuilds from snapshots and from the
   first record must agree, and commands must end with 0.
"""

from __future__ import annotations

import hashlib
import random
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import refold
from refold.avro.errors import StorageError
from refold.streams.log.kafka.deadletters import is_verdict
from refold.streams.log.kafka.fold_position import is_emitted
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.manifests import is_entry
from refold.streams.log.kafka.range_reader import RawRecord
from refold.streams.log.port import Mismatch
from refold.testing.kafka import start_kafka
from refold_tests.command import refold_command
from refold_tests.folding import append, await_folded, history, opened, url_of
from refold_tests.fuzz import mutate, records, served
from refold_tests.fuzz.conversations import http_parts
from refold_tests.fuzz.world import CONTENT, World
from refold_tests.sample_types import THING, A, said
from refold_tests.worker_pages import worker_with_pages

RECORDS = 80
REQUESTS = 20
COMMANDS = (
    ("state", A), ("history", A), ("rebuild",), ("doctor",), ("types",), ("markers",), ("deadletters", "list"),
    ("snapshot", "--list"), ("runs",), ("verify",),
)  # fmt: skip


def attack(log: KafkaLog, chance: random.Random, world: World, count: int = RECORDS) -> int:
    """Write `count` foreign records into each topic; return how many were written."""
    topics = log.topics
    makers: dict[str, tuple[Callable[[random.Random, World], RawRecord], Callable[[int, RawRecord], bool]]] = {
        topics.observations: (records.observation_raw, lambda partition, raw: False),
        topics.schemas: (records.definition_raw, lambda partition, raw: False),
        topics.deadletters: (records.deadletter_raw, lambda partition, raw: is_verdict(raw)),
        topics.manifests: (
            records.manifest_raw, lambda partition, raw: is_entry(partition, raw.key or b"", raw.value)
        ),
        topics.contents: (records.content_raw, lambda partition, raw: False),
        topics.changes: (_change_raw, lambda partition, raw: is_emitted(raw)),
        topics.snapshots: (_change_raw, lambda partition, raw: False),
    }  # fmt: skip
    producer = log.clients.producer()
    written = 0
    for topic, (make, is_refolds) in makers.items():
        for _ in range(count):
            partition = 0 if topic == topics.schemas else chance.randrange(log.partitions)
            raw = make(chance, world)
            if not is_refolds(partition, raw):
                producer.produce(topic, raw.value, raw.key, partition, headers=raw.headers)
                written += 1
    assert producer.flush(60) == 0
    return written


def _change_raw(chance: random.Random, world: World) -> RawRecord:
    return records.raw_of(b"key", mutate.damaged(chance, chance.choice(world.changes)))


def run_round(bootstrap: str, prefix: str, seed: int, world: World, folder: Path) -> tuple[int, int]:
    """Run one round on a broker; return the number of records and requests.

    Raises:
        AssertionError: A promise is broken.
    """
    chance = random.Random(seed)
    url = url_of(bootstrap, prefix)
    noting = served.noting()
    with opened(url) as log:
        log.blobs.put(hashlib.sha256(CONTENT).digest(), CONTENT)
        written = attack(log, chance, world)
        log.register(THING)
        acknowledged = append(log, [said(A, 1), *history(chance, 40)])
        written += attack(log, chance, world)
        with worker_with_pages(url, folder) as (worker, pages), refold.open(url) as client:
            acknowledged |= append(log, history(chance, 40))
            written += attack(log, chance, world)
            noting.notes.clear()
            for _ in range(REQUESTS):
                served.converse(pages, http_parts(chance, world), is_checked=False)
            assert not noting.notes, noting.notes[0]
            acknowledged |= append(log, history(chance, 20))
            await_folded(log, worker)
            _seal(client)
            whole = client.verify()
            wrong = [each for each in whole.mismatches if not _is_invented(each)]
            assert wrong == [], wrong
            assert whole.root == client.rebuild().root == client.rebuild(full=True).root
            _run_commands(url, verified=int(bool(whole.mismatches)))
        log.refresh()
        assert log.blobs.get(hashlib.sha256(CONTENT).digest()) == CONTENT
        held = {each.id for part, end in log.ends().items() for each in log.read(part, 0, end)}
        assert acknowledged <= held, len(acknowledged - held)
    return written, REQUESTS


def _seal(client: refold.Log) -> None:
    """Seal an epoch. A foreign record in `.snapshots` makes a partition's next attempt fail, and the one after it
    succeeds.
    """
    for _ in range(client.port.partitions):
        try:
            client.snapshot()
            return
        except StorageError as error:
            if "another process writes there" not in str(error):
                raise
    client.snapshot()


def _is_invented(mismatch: Mismatch) -> bool:
    """Return whether the mismatch is a content that nobody put, which a foreign observation names."""
    return mismatch.place.startswith("blobs ") and mismatch.problem == "missing"


def _run_commands(url: str, *, verified: int) -> None:
    """Run commands. verified: the expected exit status of verify."""
    for number, words in enumerate(COMMANDS):
        done = refold_command(*words, *(("--json",) if number % 2 else ()), log=url)
        assert done.status == (verified if words == ("verify",) else 0), (words, done)
        assert "Traceback" not in done.err, (words, done)


def run_rounds(seed: int, world: World, seconds: float) -> int:
    """Run rounds on a new broker until the time is over; return 1 if one failed."""
    end, rounds, written = time.monotonic() + seconds, 0, 0
    with tempfile.TemporaryDirectory(prefix="refold-fuzz-") as folder, start_kafka() as kafka:
        while time.monotonic() < end:
            try:
                written += run_round(kafka.bootstrap, f"fuzz{rounds}", seed + rounds, world, Path(folder, str(rounds)))[
                    0
                ]
            except Exception:
                traceback.print_exc()
                print(f"  again: make fuzz ARGS='--kafka --seed {seed + rounds} --seconds 1'", flush=True)
                return 1
            rounds += 1
    print(f"{rounds:,} rounds, {written:,} hostile records, {rounds * REQUESTS:,} requests, 0 failed")
    return 0
