"""Records what a worker's metrics say of real faults: `make record-outage` writes tests/monitoring/recorded/.

1. Start a Kafka of one broker, a log with two partitions and one worker. Scrape the worker every INTERVAL_S, at fixed
   times, as Prometheus does: `up` is 1 where the page answered within the interval.
2. Record observations while all is well, and a batch directly before the fault.
3. An outage: kill the broker, start it again OUTAGE_S later, and scrape for AFTER_S more. A topic that is gone: delete
   `.changes`, and scrape for GONE_S more.
4. Keep the metrics that the alert rules use, and write each series in promtool's notation: a value that repeats once,
   with its count; `_` before a series begins, `stale` at the first scrape that lacks it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple
from urllib.request import urlopen

import yaml
from prometheus_client.parser import text_string_to_metric_families

import refold
from refold.testing.kafka import Kafka, start_kafka
from refold_tests.kafka_topics import Broker
from refold_tests.prometheus import alert_rules, metrics_in
from refold_tests.tree import ROOT
from refold_tests.waiting import await_true
from refold_tests.worker_process import starting

RECORDED = ROOT / "tests" / "monitoring" / "recorded"
OUTAGE, TOPIC_GONE = RECORDED / "outage.yml", RECORDED / "topic_gone.yml"
INTERVAL_S = 5.0
BEFORE_S, OUTAGE_S, AFTER_S, GONE_S = 60.0, 240.0, 180.0, 180.0
LAST_BATCH = 300
_HEAD = """\
# What a real worker's metrics said before, during and after a fault, as promtool takes series. By `make record-outage`.
"""

Sample = dict[str, float]
"""What one scrape found, by series; the label values of a test's own are left out."""


class Scraper:
    """Scrapes a page in a thread until closed; `samples[n]` is of n intervals after the start."""

    def __init__(self, url: str, interval_s: float) -> None:
        self._url, self.interval_s = url, interval_s
        self.samples: list[Sample] = []
        self.begun_s = time.monotonic()
        self._stopping = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Scrape no more."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.samples.append(_scrape(self._url, self.interval_s))
            next_s = self.begun_s + len(self.samples) * self.interval_s
            self._stopping.wait(max(0.0, next_s - time.monotonic()))

    def vanished(self) -> dict[str, list[int]]:
        """The series that were missing from a scrape after they began, with the numbers of these scrapes."""
        begun: set[str] = set()
        found: dict[str, list[int]] = {}
        for number, each in enumerate(self.samples):
            for name in begun - each.keys():
                found.setdefault(name, []).append(number)
            begun |= each.keys()
        return found


@contextmanager
def scraping(url: str, interval_s: float) -> Iterator[Scraper]:
    """Scrapes a page while the block runs."""
    scraper = Scraper(url, interval_s)
    try:
        yield scraper
    finally:
        scraper.close()


def _scrape(url: str, timeout_s: float) -> Sample:
    try:
        with urlopen(url, timeout=timeout_s) as found:
            families = list(text_string_to_metric_families(found.read().decode()))
    except OSError:
        return {_series("up", {}): 0}
    page = {_series(one.name, one.labels): one.value for each in families for one in each.samples}
    return {_series("up", {}): 1, **page}


def _series(name: str, labels: dict[str, str]) -> str:
    given = {**labels, "instance": "worker:6066", "job": "refold"}
    shown = ",".join(f'{key}="{value}"' for key, value in sorted(given.items()))
    return f"{name}{{{shown}}}"


class Recording(NamedTuple):
    """A fault as it was recorded, from `begun_s` to `over_s`; times in seconds after the first scrape. values: in
    promtool's notation."""

    interval_s: float
    begun_s: float
    over_s: float
    end_s: float
    values: dict[str, str]

    def write(self, path: Path) -> None:
        """As YAML."""
        times = {"interval_s": self.interval_s, "begun_s": self.begun_s, "over_s": self.over_s, "end_s": self.end_s}
        series = [{"series": name, "values": values} for name, values in sorted(self.values.items())]
        text = yaml.safe_dump({**times, "input_series": series}, sort_keys=False, width=10_000)
        path.write_text(_HEAD + text, encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Recording:
        """The recording in a file."""
        found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        series = {each["series"]: each["values"] for each in found.pop("input_series")}
        return cls(**found, values=series)


def used_metrics() -> set[str]:
    """The metrics that alerts are about."""
    return {name for rule in alert_rules() for name in metrics_in(rule["expr"])}


def in_notation(values: Sequence[float | None]) -> str:
    """Values of one series in promtool's notation; None where a scrape lacks it."""
    words, has_begun = [], False
    for value, run in groupby(values):
        count = len(list(run))
        if value is None:
            words += ["stale", *(["_"] * (count - 1))] if has_begun else ["_"] * count
            continue
        has_begun = True
        digits = 2 if abs(value) > 1e9 else 4
        shown = str(int(value)) if value == int(value) and digits == 4 else f"{value:.{digits}g}"
        words.append(shown if count == 1 else f"{shown}x{count - 1}")
    return " ".join(words)


class Run(NamedTuple):
    """A worker that is scraped while something befalls it."""

    kafka: Kafka
    url: str
    scraper: Scraper

    @property
    def now_s(self) -> float:
        """Seconds since the first scrape."""
        return round(time.monotonic() - self.scraper.begun_s, 1)

    def recording(self, begun_s: float, over_s: float) -> Recording:
        """What was scraped until now."""
        end_s, used = self.now_s, used_metrics()
        samples = list(self.scraper.samples)
        names = sorted({name for each in samples for name in each if name.partition("{")[0] in used})
        values = {name: in_notation([each.get(name) for each in samples]) for name in names}
        return Recording(self.scraper.interval_s, begun_s, over_s, end_s, values)


@contextmanager
def running(interval_s: float) -> Iterator[Run]:
    """A worker on a Kafka of its own, scraped once it is ready."""
    with tempfile.TemporaryDirectory() as folder, start_kafka() as kafka:
        url = f"kafka://{kafka.bootstrap}/shop"
        with refold.open(f"{url}?partitions=2") as log:
            log.observe("document/d", {"fields": {"a": 0}}, source="one")
        with starting(url, Path(folder)) as start:
            worker = start("one", "--instance", "one")
            await_true(lambda: worker.is_ready)
            with scraping(f"{worker.url}/metrics", interval_s) as scraper:
                yield Run(kafka, url, scraper)


def record_outage(before_s: float, outage_s: float, after_s: float, interval_s: float) -> Recording:
    """Kill the only broker, and start it again; takes the sum of the times and some seconds."""
    with running(interval_s) as run:
        _observe(run.url, before_s, LAST_BATCH)
        run.kafka.kill(1)
        begun_s = run.now_s
        time.sleep(outage_s)
        run.kafka.restart(1)
        over_s = run.now_s
        _observe(run.url, after_s, 0)
        return run.recording(begun_s, over_s)


def record_topic_gone(before_s: float, gone_s: float, interval_s: float) -> Recording:
    """Delete `.changes`; it does not come back."""
    with running(interval_s) as run:
        _observe(run.url, before_s, 0)
        Broker(run.kafka.bootstrap, "shop").delete("shop.changes")
        begun_s = run.now_s
        time.sleep(gone_s)
        return run.recording(begun_s, run.now_s)


def _observe(url: str, for_s: float, last: int) -> None:
    end_s = time.monotonic() + for_s
    with refold.open(url) as log:
        number = 0
        while time.monotonic() < end_s:
            number += 1
            log.observe(f"document/d{number % 50}", {"fields": {"a": number}}, source="one")
            log.flush()
            time.sleep(0.5)
        for each in range(last):
            log.observe(f"document/l{each}", {"fields": {"a": each}}, source="one")


def main() -> int:
    """Record each fault into its file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["outage", "topic_gone"], help="this fault only")
    only = parser.parse_args().only
    if only != "topic_gone":
        _write(record_outage(BEFORE_S, OUTAGE_S, AFTER_S, INTERVAL_S), OUTAGE)
    if only != "outage":
        _write(record_topic_gone(BEFORE_S, GONE_S, INTERVAL_S), TOPIC_GONE)
    return 0


def _write(recording: Recording, path: Path) -> None:
    recording.write(path)
    print(f"{path}: {len(recording.values)} series; the fault from {recording.begun_s} s to {recording.over_s} s")


if __name__ == "__main__":
    raise SystemExit(main())
