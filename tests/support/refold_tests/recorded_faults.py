"""Real faults, and what a worker's metrics show during them. `make record-faults` (record_faults.py) records this.

1. Start a Kafka, a log named after the fault with two partitions, and one worker. Scrape the worker every INTERVAL_S,
   at fixed times.
2. Record observations continuously, except while no broker accepts them.
3. Begin the fault after `before_s`, end it after `fault_s`, and scrape for `after_s` more.
4. Keep the metrics that the alert rules use.

Several faults may be recorded at once on one Kafka. Those that stop a broker, or hold back its answers, have their own.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from threading import Event, Lock, Thread
from typing import NamedTuple

import pytest

import refold
from refold.streams.log.kafka.offsets import KafkaPartition
from refold.streams.log.kafka.quarantine import restore_record, set_record_aside
from refold.testing.kafka import Kafka, start_kafka
from refold_tests.bitrot import rot, rot_batch, without_compression
from refold_tests.folding import append, opened, url_of
from refold_tests.kafka_proxy import FetchProxy, fetches_through_proxy
from refold_tests.kafka_topics import Broker
from refold_tests.sample_types import PICKY, THING, said
from refold_tests.scraped_metrics import Recording, Scraper, in_notation, scraping, used_metrics
from refold_tests.strange_types import naming, other_code, put_definition
from refold_tests.waiting import await_true
from refold_tests.worker_process import Worker, starting

INTERVAL_S = 5.0
WINDOW_S = 600.0
"""How long an alert fires after something that happened once."""
_PAUSE_S = 0.5
_LAST_BATCH, _LAGGING_BATCH = 300, 4000


class Run(NamedTuple):
    """A worker that is scraped during a fault. proxy: the proxy that fetches pass through, if there is one."""

    name: str
    kafka: Kafka
    worker: Worker
    scraper: Scraper
    producer: Producer
    proxy: FetchProxy | None

    @property
    def url(self) -> str:
        """The log's URL."""
        return url_of(self.kafka.bootstrap, self.name)

    @property
    def broker(self) -> Broker:
        """Direct access to the broker."""
        return Broker(self.kafka.bootstrap, self.name)

    @property
    def now_s(self) -> float:
        """Seconds since the first scrape."""
        return round(time.monotonic() - self.scraper.begun_s, 1)

    def recording(self, begun_s: float, over_s: float) -> Recording:
        """Return what was scraped so far."""
        end_s, used = self.now_s, used_metrics()
        samples = list(self.scraper.samples)
        names = sorted({name for each in samples for name in each if name.partition("{")[0] in used})
        values = {name: in_notation([each.get(name) for each in samples]) for name in names}
        return Recording(self.scraper.interval_s, begun_s, over_s, end_s, values)


class Producer:
    """Records observations in a thread, two per second, until it is closed."""

    def __init__(self, url: str) -> None:
        self._log = refold.open(url)
        self._stopping, self._going = Event(), Event()
        self._going.set()
        self._lock = Lock()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def pause(self) -> None:
        """Record nothing until `go_on`. Earlier observations are acknowledged on return."""
        self._going.clear()
        with self._lock:
            self._log.flush()

    def go_on(self) -> None:
        """Resume recording."""
        self._going.set()

    def batch(self, count: int) -> None:
        """Record `count` observations at once. They are acknowledged on return."""
        with self._lock:
            for each in range(count):
                self._log.observe(f"document/l{each}", {"fields": {"a": each}}, source="one")
            self._log.flush()

    def close(self) -> None:
        """Stop the thread."""
        self._stopping.set()
        self._going.set()
        self._thread.join()
        self._log.close()

    def _run(self) -> None:
        number = 0
        while not self._stopping.wait(_PAUSE_S):
            self._going.wait()
            number += 1
            with self._lock:
                self._log.observe(f"document/d{number % 50}", {"fields": {"a": number}}, source="one")
                self._log.flush()


class Fault:
    """A fault of a worker or its log, which is healthy at first. before_s, fault_s, after_s: see the module's
    docstring.
    """

    before_s, fault_s, after_s = 60.0, 240.0, 120.0
    has_own_kafka = comes_by_proxy = False

    def prepare(self, run: Run) -> None:
        """Create what the fault needs. No alert may fire because of it."""

    def begin(self, run: Run) -> None:
        """Begin the fault."""
        raise NotImplementedError

    def end(self, run: Run) -> None:
        """End the fault, if it does not last."""


class Outage(Fault):
    """The only broker is killed, and restarted."""

    after_s = 180.0
    has_own_kafka = True

    def begin(self, run: Run) -> None:
        run.producer.pause()
        run.producer.batch(_LAST_BATCH)
        run.kafka.kill(1)

    def end(self, run: Run) -> None:
        run.kafka.restart(1)
        run.producer.go_on()


class TopicGone(Fault):
    """`.changes` is deleted, and not restored."""

    fault_s, after_s = 300.0, 0.0

    def begin(self, run: Run) -> None:
        run.producer.pause()
        # A worker that has something to commit there would end, which is another fault.
        await_true(lambda: all(each["lag"] == 0 for each in run.worker.folding.values()))
        run.broker.delete(f"{run.name}.changes")


class Drifted(Fault):
    """A setting of `.observations` is changed, and changed back."""

    fault_s = 300.0

    def begin(self, run: Run) -> None:
        run.broker.alter(f"{run.name}.observations", "retention.ms", "604800000")

    def end(self, run: Run) -> None:
        run.broker.alter(f"{run.name}.observations", "retention.ms", "-1")


class Foreign(Fault):
    """A producer writes a record into `.schemas` that is not a definition."""

    fault_s, after_s = WINDOW_S + 120.0, 0.0

    def begin(self, run: Run) -> None:
        run.broker.produce(KafkaPartition(f"{run.name}.schemas", 0), [b"{}"])


class DeadLetter(Fault):
    """A producer writes a record into `.observations` that is not an observation."""

    fault_s, after_s = WINDOW_S + 120.0, 0.0

    def begin(self, run: Run) -> None:
        run.broker.produce(KafkaPartition(f"{run.name}.observations", 0), [b"junk"], key=b"document/d1")


class Held(Fault):
    """A producer registers a type whose code no worker has."""

    fault_s, after_s = WINDOW_S + 120.0, 0.0

    def begin(self, run: Run) -> None:
        with opened(run.url) as log:
            put_definition(log, naming("stranger", "nowhere:folded"))


class Pending(Fault):
    """A producer registers a new version of a type in effect, and no worker has its code."""

    fault_s, after_s = WINDOW_S + 120.0, 0.0

    def prepare(self, run: Run) -> None:
        with opened(run.url) as log:
            log.register(THING)
            append(log, [said(f"{THING.name}/a", 1)])

    def begin(self, run: Run) -> None:
        with opened(run.url) as log:
            put_definition(log, other_code())


class ReducerFails(Fault):
    """A custom reducer raises an exception on a value."""

    fault_s, after_s = WINDOW_S + 120.0, 0.0

    def prepare(self, run: Run) -> None:
        with opened(run.url) as log:
            log.register(PICKY)
            append(log, [said(f"{PICKY.name}/a", 1, start="good")])

    def begin(self, run: Run) -> None:
        with opened(run.url) as log:
            append(log, [said(f"{PICKY.name}/a", 2, start="bad")])


class Damaged(Fault):
    """A disk loses an observation that was folded. It is set aside and counted again, and then its bytes are
    restored.
    """

    def prepare(self, run: Run) -> None:
        lost = said(f"{THING.name}/lost", 1)
        with pytest.MonkeyPatch.context() as patch, opened(run.url) as log:
            without_compression(patch)
            log.register(THING)
            append(log, [lost])
            place = KafkaPartition(log.topics.observations, log.partition_of(lost.entity))
            records = log.reading.records(place, 0, log.offsets.ends([place])[place])
            raw = next(each for each in records if each.key == lost.entity.encode())
            self._at = place.partition, raw.offset
            await_true(lambda: _folded(run.worker, place.partition) > raw.offset)
            assert raw.value is not None
            self._rot = rot(run.kafka, *place, raw.value, raw.value[:5] + b"\xff" * (len(raw.value) - 5))
            log.refresh()
            set_record_aside(log, "observations", *self._at, _now_ms(), apply=True)
        await_true(lambda: run.worker.is_ready)

    def begin(self, run: Run) -> None:
        with opened(run.url) as log:
            restore_record(log, "observations", *self._at, _now_ms(), apply=True)

    def end(self, run: Run) -> None:
        self._rot.heal()


class DamagedBatches(Fault):
    """A disk loses batches of snapshots, which the worker reads when it rebuilds its tables. It does not end."""

    after_s = 0.0

    def prepare(self, run: Run) -> None:
        with refold.open(run.url) as client:
            client.snapshot()

    def begin(self, run: Run) -> None:
        with opened(run.url) as log:
            places = [KafkaPartition(log.topics.snapshots, number) for number in range(log.partitions)]
            ends = log.offsets.ends(places)
            damaged = [(place, log.reading.records(place, 0, ends[place])) for place in places]
            for place, offset in [(place, raw.offset) for place, records in damaged for raw in records]:
                rot_batch(run.kafka, *place, offset)
        status, said = run.worker.post("/recover", {"wait": True})
        assert status == 200, said


class Lagging(Fault):
    """The broker answers everything except fetches, so the worker does not know that it lags."""

    fault_s = 18 * 60.0
    has_own_kafka = comes_by_proxy = True

    def begin(self, run: Run) -> None:
        assert run.proxy is not None
        run.proxy.keeps_fetches.set()
        run.producer.batch(_LAGGING_BATCH)

    def end(self, run: Run) -> None:
        assert run.proxy is not None
        run.proxy.keeps_fetches.clear()


FAULTS: dict[str, Callable[[], Fault]] = {
    "outage": Outage,
    "topic_gone": TopicGone,
    "drifted": Drifted,
    "foreign": Foreign,
    "dead_letter": DeadLetter,
    "held": Held,
    "pending": Pending,
    "reducer_fails": ReducerFails,
    "damaged": Damaged,
    "damaged_batches": DamagedBatches,
    "lagging": Lagging,
}


def _folded(worker: Worker, partition: int) -> int:
    return int(worker.folding.get(str(partition), {}).get("offset", 0))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@contextmanager
def _running(name: str, kafka: Kafka, proxy: FetchProxy | None, interval_s: float) -> Iterator[Run]:
    """Run a worker of its own log, and scrape it once it is ready."""
    url = url_of(kafka.bootstrap, name)
    with ExitStack() as ending:
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory()))
        producer = ending.enter_context(closing(Producer(url)))
        worker = ending.enter_context(starting(url, folder))("one", "--instance", "one")
        await_true(lambda: worker.is_ready)
        scraper = ending.enter_context(scraping(f"{worker.url}/metrics", interval_s, interval_s))
        yield Run(name, kafka, worker, scraper, producer, proxy)


def record(name: str, fault: Fault, shared: Kafka, interval_s: float = INTERVAL_S) -> Recording:
    """Record one fault. This takes the fault's times and some seconds."""
    with ExitStack() as ending:
        kafka = ending.enter_context(start_kafka()) if fault.has_own_kafka else shared
        proxy = ending.enter_context(fetches_through_proxy(kafka)) if fault.comes_by_proxy else None
        run = ending.enter_context(_running(name, kafka, proxy, interval_s))
        fault.prepare(run)
        time.sleep(fault.before_s)
        begun_s = run.now_s
        fault.begin(run)
        time.sleep(fault.fault_s)
        over_s = run.now_s
        fault.end(run)
        time.sleep(fault.after_s)
        return run.recording(begun_s, over_s)
