"""Keeps a sink up to date with a log.

1. Read the store's position. A cut of another log, or one that this log cannot have, is refused; the message names
   both.
2. If the store is empty, load everything at the present cut, in one transaction.
3. Get what follows the position, a batch or types that must be read again, and write it.
4. If nothing follows, end, or wait and repeat step 3.
5. After SinkBusy the last write may have been stored or not. Forget all states that were handed out, wait as long as
   the store says, and begin again at step 1. When following, a temporary failure of the log (StorageError) is handled
   in the same way. Sinks of whole cuts wait for the same errors.
6. A stop request is checked between batches and while waiting: a write that began is finished.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Event

from refold.avro.errors import CorruptionError, InputError, StorageError
from refold.sinks.feed import CHANGES_MAX, Feed, Lag
from refold.sinks.port import Batch, EntityState, Load, Sink, SinkBusy, SinkRefused, SnapshotSink
from refold.streams.cut import Cut
from refold.streams.log.port import LogPort
from refold.streams.point import Points
from refold.streams.rebuild.partition import Progress
from refold.streams.rebuild.rebuild import rebuild
from refold.streams.view import StateView

POLL_S = 0.2
LOG_RETRY_S = 1.0
LAG_EVERY_S = 1.0


@dataclass(slots=True)
class SinkReport:
    """What this process has done so far.

    Attributes:
        position: The cut that the store holds; None for an empty store.
        changes: The number of changes of the log in the batches.
        entities: The number of states that were passed to the sink.
        batches, loads: The numbers of batches and of loads.
        busy: How often the store or the log failed temporarily.
        last_busy: The text of the last of these errors; empty if there was none.
    """

    position: Cut | None = None
    changes: int = 0
    entities: int = 0
    batches: int = 0
    loads: int = 0
    busy: int = 0
    last_busy: str = ""


@dataclass(frozen=True, slots=True)
class SinkCommit:
    """A commit to a sink of whole cuts: its cut and number of entities.

    Attributes:
        changes: The number of changes since the previous commit; 0 for the first.
    """

    cut: Cut
    changes: int
    entities: int


@dataclass(slots=True)
class SinkWatch:
    """Callbacks about progress.

    Attributes:
        loading: Called with the number of further records read for a load, and the total.
        storing: Called with the number of further entities passed to the sink, and the total.
        wrote: Called after each transaction, with its content.
        caught_up: Called when the store answered, and holds every change.
        refused: Called with an error that is waited for, and the seconds until the next attempt.
        lags: Called with the lag, about every `lag_every_s` seconds.
        lag_every_s: The time between two calls of `lags`, in seconds.
        report: What was done so far.
    """

    loading: Progress = lambda more, total: None
    storing: Progress = lambda more, total: None
    wrote: Callable[[Load | Batch | SinkCommit], None] = lambda taken: None
    caught_up: Callable[[], None] = lambda: None
    refused: Callable[[StorageError, float], None] = lambda error, retry_after_s: None
    lags: Callable[[Lag], None] = lambda lag: None
    lag_every_s: float = LAG_EVERY_S
    report: SinkReport = field(default_factory=SinkReport)


def keep_up(
    log: LogPort, sink: Sink, *, follow: bool, stop: Event, watch: SinkWatch | None = None, poll_s: float = POLL_S,
    changes_max: int = CHANGES_MAX, log_retry_s: float = LOG_RETRY_S,
) -> SinkReport:  # fmt: skip
    """Bring a sink up to the log's end, and optionally keep it there.

    Args:
        log: The log, open to read.
        sink: The sink.
        follow: Whether to wait for further changes at the log's end, until `stop` is set.
        stop: Ends the run between two batches.
        watch: Receives the lag, loads and commits; for metrics and output.
        poll_s: How often to look for further changes, in seconds.
        changes_max: About how many changes a batch may have.
        log_retry_s: When to begin again after a temporary failure of the log, in seconds.

    Returns:
        What was written.

    Raises:
        SinkRefused: The store refuses, and waiting does not help. Everything written before stays stored.
        CorruptionError: The log or the store is damaged.
        StorageError: The log cannot be read, and `follow` is False.
    """
    sink.attach(log)
    return _Follower(log, sink, watch or SinkWatch(), stop, changes_max).run(follow, poll_s, log_retry_s)


class _Follower:
    """Keeps one sink up to date."""

    def __init__(self, log: LogPort, sink: Sink, watch: SinkWatch, stop: Event, changes_max: int) -> None:
        self._log = log
        self._sink = sink
        self._watch = watch
        self._report = watch.report
        self._stop = stop
        self._feed = Feed(log, sink.stored, history=sink.wants_history, changes_max=changes_max)
        self._lag_due_s = 0.0

    def run(self, follow: bool, poll_s: float, log_retry_s: float) -> SinkReport:
        while not self._stop.is_set():
            try:
                self._write_up_to_end(_position(self._log, self._sink))
                if not follow:
                    break
                self._stop.wait(poll_s)
            except StorageError as error:
                wait_s = _wait_after(error, self._watch, log_retry_s, follow=follow)
                self._feed.forget()
                with suppress(StorageError):  # where the log fails, too, the lag is not known
                    self._log.refresh()
                    self._report_lag(self._report.position)
                self._stop.wait(wait_s)
        return self._report

    def _write_up_to_end(self, position: Cut | None) -> None:
        """Write everything after a position, up to the present end."""
        self._report.position = position
        while not self._stop.is_set():
            found = self._feed.first(self._watch.loading) if position is None else self._feed.next(position)
            if found is None:
                self._watch.caught_up()
                self._report_lag(position)
                return
            if isinstance(found, Load):
                self._sink.load(replace(found, states=partial(self._counted, found)))
                self._report.loads += 1
                self._report.entities += found.total
            else:
                self._sink.write(found)
                self._report.batches += 1
                self._report.changes += found.changes
                self._report.entities += len(found.states)
            self._report.position = position = found.cut
            self._watch.wrote(found)
            self._report_lag(position)

    def _counted(self, load: Load) -> Iterator[EntityState]:
        for each in load.states():
            yield each
            self._watch.storing(1, load.total)

    def _report_lag(self, position: Cut | None) -> None:
        if position is not None and time.monotonic() >= self._lag_due_s:
            self._watch.lags(self._feed.lag(position))
            self._lag_due_s = time.monotonic() + self._watch.lag_every_s


def keep_snapshots(
    log: LogPort, sink: SnapshotSink, *, follow: bool, every_s: float, stop: Event, watch: SinkWatch | None = None,
    log_retry_s: float = LOG_RETRY_S,
) -> SinkReport:  # fmt: skip
    """Commit the log's present cut to a sink of whole cuts, and optionally continue.

    The lag is reported before and after each commit, and while waiting.

    Args:
        log: The log, open to read.
        sink: The sink.
        follow: Whether to commit again every `every_s` seconds if the cut moved.
        every_s: Seconds between two commits.
        stop: Ends the run between two commits.
        watch: As for `keep_up`.
        log_retry_s: As for `keep_up`.

    Returns:
        What was written.

    Raises:
        SinkRefused: The store refuses, and waiting does not help.
    """
    watch = watch or SinkWatch()
    report = watch.report
    feed = Feed(log, lambda names: {}, history=False)
    while not stop.is_set():
        began = time.monotonic()
        try:
            report.position = sink.position()
            log.refresh()
            feed.forget()
            changes = 0
            if report.position is not None:
                checked(log, sink.name, report.position)
                lag = feed.lag(report.position)
                watch.lags(lag)
                changes = lag.changes
            cut = Points(log, 0).end()
            if cut != report.position or sink.is_outdated:
                view = StateView(log, cut, rebuild(log, cut, watch.loading))
                sink.commit(view, watch.storing)
                report.position = cut
                report.loads += 1
                report.entities += len(view)
                watch.wrote(SinkCommit(cut, changes, len(view)))
                feed.forget()
                watch.lags(feed.lag(cut))
            watch.caught_up()
            if not follow:
                break
            while not stop.is_set() and (pause_s := every_s - (time.monotonic() - began)) > 0:
                stop.wait(min(watch.lag_every_s, pause_s))
                log.refresh()
                watch.lags(feed.lag(cut))
        except StorageError as error:
            stop.wait(_wait_after(error, watch, log_retry_s, follow=follow))
    return report


def _wait_after(error: StorageError, watch: SinkWatch, log_retry_s: float, *, follow: bool) -> float:
    """Step 5: return the time to wait, in seconds; raise errors that waiting does not fix."""
    if isinstance(error, CorruptionError) or not (follow or isinstance(error, SinkBusy)):
        raise error
    wait_s = error.retry_after_s if isinstance(error, SinkBusy) else log_retry_s
    watch.report.busy += 1
    watch.report.last_busy = str(error)
    watch.refused(error, wait_s)
    return wait_s


def _position(log: LogPort, sink: Sink) -> Cut | None:
    found = sink.position()
    log.refresh()  # another process may have written what this one has not read yet
    return None if found is None else checked(log, sink.name, found)


def checked(log: LogPort, name: str, position: Cut) -> Cut:
    """Check that a log can continue a store's position.

    Args:
        log: The log.
        name: The sink's name, for the error.
        position: The cut that the store holds.

    Returns:
        The position.

    Raises:
        SinkRefused: The cut is of another log, or past its end. The message names both.
    """
    try:
        return Points(log, 0).resolve(position).cut
    except InputError as error:
        raise SinkRefused(f"{name} holds a state that this log cannot continue: {error}. Name another place for it, "
                          "or empty this one") from error  # fmt: skip
