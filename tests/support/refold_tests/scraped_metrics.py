"""The series of a metrics page during a fault, scraped as Prometheus does, and stored as YAML.

`up` is 1 if the page answered in time. A series is written in promtool's notation: a repeated value is written once,
with its count; `_` stands for scrapes before the series begins, `stale` for the first scrape without it.
"""

from __future__ import annotations

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

from refold_tests.prometheus import alert_rules, metrics_in
from refold_tests.tree import ROOT

RECORDED = ROOT / "tests" / "monitoring" / "recorded"
_HEAD = """\
# What a real worker's metrics said before, during and after a fault, as promtool takes series. By `make record-faults`.
"""

Sample = dict[str, float]
"""The result of one scrape, by series. Label values that depend on the test are left out."""


class Scraper:
    """Scrapes a page in a thread until it is closed. `samples[n]` was taken n intervals after the start, or later."""

    def __init__(self, url: str, interval_s: float, timeout_s: float) -> None:
        self._url, self.interval_s, self._timeout_s = url, interval_s, timeout_s
        self.samples: list[Sample] = []
        self.begun_s = time.monotonic()
        self._stopping = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop scraping."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.samples.append(_scrape(self._url, self._timeout_s))
            next_s = self.begun_s + len(self.samples) * self.interval_s
            self._stopping.wait(max(0.0, next_s - time.monotonic()))

    def vanished(self) -> dict[str, list[int]]:
        """Return the series that were missing from a scrape after they began, with the indexes of these scrapes."""
        begun: set[str] = set()
        found: dict[str, list[int]] = {}
        for number, each in enumerate(self.samples):
            for name in begun - each.keys():
                found.setdefault(name, []).append(number)
            begun |= each.keys()
        return found


@contextmanager
def scraping(url: str, interval_s: float, timeout_s: float) -> Iterator[Scraper]:
    """Scrape a page while the block runs. timeout_s: a longer scrape has failed."""
    scraper = Scraper(url, interval_s, timeout_s)
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
    """The recording of a fault that lasted from `begun_s` to `over_s`, in seconds after the first scrape. values: in
    promtool's notation.
    """

    interval_s: float
    begun_s: float
    over_s: float
    end_s: float
    values: dict[str, str]

    def write(self, path: Path) -> None:
        """Write it as YAML."""
        times = {"interval_s": self.interval_s, "begun_s": self.begun_s, "over_s": self.over_s, "end_s": self.end_s}
        series = [{"series": name, "values": values} for name, values in sorted(self.values.items())]
        text = yaml.safe_dump({**times, "input_series": series}, sort_keys=False, width=10_000)
        path.write_text(_HEAD + text, encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Recording:
        """Read a recording from a file."""
        found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        series = {each["series"]: each["values"] for each in found.pop("input_series")}
        return cls(**found, values=series)


def used_metrics() -> set[str]:
    """Return the metrics that alerts use."""
    return {name for rule in alert_rules() for name in metrics_in(rule["expr"])}


def in_notation(values: Sequence[float | None]) -> str:
    """Return the values of one series in promtool's notation. None: the scrape did not have it."""
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
