"""Seals in the background while the fold continues, or at once on request.

1. The fold reports how many records it folded. A partition is due when its share of `epoch_records` was folded since
   its last epoch, and that is at least `every_ms` ago. It is also due when its cache is pressing (dirty_entities.py):
   states would soon be dropped and have to be read again, or the partition has many; but not if by then it will have
   so many records that the next epoch is made from the whole table (seal.py). The thread is woken.
2. It chooses the due partitions with the most records since their last epochs, up to `at_once`. More than one where
   step 3 may wait long for the fold.
3. It takes a view of their tables between two batches, which delays the fold only briefly.
4. It seals the epochs, one after another (seal.py; with large tables in another process, sealing_process/sealer.py). If
   that fails, it is tried again after the next records. A base takes as long as many deltas: while the sealing process
   writes one, other partitions that are due go through steps 2 to 4 meanwhile, one at a time, unless a rest is due.
5. After a base it collects garbage (garbage.py), at most every `collect_every_ms`.
6. It rests until steps 2 to 5 took at most `cpu_share` of a processor since they began, because a background thread
   competes with the fold for the GIL. Then it continues with the next partition. With a `Pace` it also rests until
   they took at most `pace.share` together with the sealing process. It ends this rest when no record was folded for
   `idle_s`, when a partition has `pace.unsealed_max` records since its last epoch, or when it is woken.
A requested snapshot does steps 3 to 5 for all partitions in the caller's thread. Only one thread at a time seals,
collects or pins.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import takewhile
from threading import Event, Lock, Thread
from typing import NamedTuple

from refold.avro.errors import RefoldError
from refold.streams.events import log_event
from refold.streams.snapshots.dirty_entities import DirtyEntities
from refold.streams.snapshots.garbage import GRACE_MS, Collected, Collector
from refold.streams.snapshots.manifest import Epoch, Manifest
from refold.streams.snapshots.seal import whole_due
from refold.streams.snapshots.sealing_process.sealer import ProcessSealer
from refold.streams.snapshots.settings import DEFAULT_SETTINGS, SnapshotSettings
from refold.streams.snapshots.store import Pin, SnapshotStore, no_such_epoch
from refold.streams.snapshots.table import TableView

_LOOK_S = 0.1

_log = logging.getLogger(__name__)

Views = Callable[[Collection[int] | None], AbstractContextManager[Iterable[TableView]]]
"""Gives a view of each partition with records, or of some of them, taken when it is the partition's turn."""


class Pace(NamedTuple):
    """How sealing, in both processes, holds back while records are folded.

    Attributes:
        share: Its share of one processor's time.
        unsealed_max: The number of records folded since the last epoch of a partition from which it holds back no
            longer.
    """

    share: float
    unsealed_max: int


class Snapshotter:
    """Seals epochs of one log until `stop`.

    Args:
        partitions: Returns those that are sealed here now.
        clock_ms: Returns milliseconds since 1970.
        prepare: Called before each epoch and before each request.
        touched: The fold's cache for epochs.
        pace: None for no limit but `cpu_share`.
        at_once: How many partitions are sealed from views of one moment.
        settings: When epochs are sealed and garbage is collected; the sealer has the same ones.
    """

    def __init__(
        self, store: SnapshotStore, sealer: ProcessSealer, views: Views, partitions: Callable[[], Iterable[int]],
        clock_ms: Callable[[], int], *, touched: DirtyEntities, every_ms: int = 0,
        prepare: Callable[[], None] = lambda: None, pace: Pace | None = None, at_once: int = 1,
        settings: SnapshotSettings = DEFAULT_SETTINGS,
    ) -> None:  # fmt: skip
        self._store = store
        self._sealer = sealer
        self._views = views
        self._partitions = partitions
        self._clock_ms = clock_ms
        self._every_ms = every_ms
        self._prepare = prepare
        self._touched = touched
        self._pace = pace
        self._at_once = at_once
        self._settings = settings
        self._folded_at_s = 0.0
        self._collector = Collector(store, GRACE_MS, settings)
        self._collected_at: int | None = None
        self._folded: dict[int, int] = {}
        self._sealed: dict[int, tuple[int, int]] = {}
        self._whole_due: dict[int, int | None] = {}
        self._begun = 0.0, 0.0  # when the thread's present round began, and what was used before it
        self._is_woken = False
        self._due = Event()
        self._stopped = Event()
        self._one_at_a_time = Lock()
        self._counting = Lock()
        self._thread = Thread(target=self._run, name="refold-snapshots", daemon=True)
        self._thread.start()

    def folded(self, records: int, partition: int) -> None:
        """Report that further records of a partition were folded."""
        with self._counting:
            folded = self._folded[partition] = self._folded.get(partition, 0) + records
            self._folded_at_s = time.monotonic()
        if folded - self._at(partition)[0] >= self._share:
            self._due.set()

    def wake(self) -> None:
        """Call `prepare` soon, even if nothing is due."""
        self._is_woken = True
        self._due.set()

    def seal(self, pinned_at: int | None = None) -> list[Manifest]:
        """Seal an epoch of every partition, durable on return. pinned_at (milliseconds since 1970): also pin it."""
        with self._one_at_a_time:
            self._prepare()
            with self._views(None) as views:
                manifests = [self._sealed_of(view) for view in views]
            self._store.sync()
            if pinned_at is not None:
                for manifest in manifests:
                    self._store.pin(Pin(manifest.epoch, pinned_at))
            self._collect_when_due(manifests)
            return manifests

    def pin(self, epochs: Iterable[Epoch], pinned_at: int) -> None:
        """Pin epochs, durable on return. Raises InputError, and pins none, if one of them does not exist."""
        with self._one_at_a_time:
            self._prepare()
            for epoch in [self._require_epoch(epoch) for epoch in epochs]:
                self._store.pin(Pin(epoch, pinned_at))

    def unpin(self, epochs: Iterable[Epoch]) -> None:
        """Unpin epochs, durable on return. Idempotent."""
        with self._one_at_a_time:
            self._prepare()
            for epoch in epochs:
                self._store.unpin(epoch)

    def collect(self, *, dry_run: bool, damaged: bool) -> list[Collected]:
        """Collect garbage now, or return what would be collected; see Collector."""
        with self._one_at_a_time:
            self._prepare()
            return self._collector.collect(self._partitions(), self._clock_ms(), dry_run=dry_run, damaged=damaged)

    def stop(self) -> None:
        """End the thread. An unfinished epoch stays without a manifest, and is garbage."""
        self.stop_soon()
        self._thread.join()
        with self._one_at_a_time:  # waits for a request that seals in its own thread
            self._sealer.close()

    def stop_soon(self) -> None:
        """Ask the thread to end, without waiting for it."""
        self._stopped.set()
        self._store.stop()
        self._sealer.stop()
        self._due.set()

    @property
    def _is_stopping(self) -> bool:
        return self._stopped.is_set()

    def _run(self) -> None:
        wait_s: float | None = None
        while True:
            self._due.wait(wait_s)
            self._due.clear()
            if self._is_stopping:
                return
            self._is_woken = False
            begun_s, used_s = time.monotonic(), time.thread_time()
            self._begun = begun_s, self._used_s()
            try:
                wait_s = self._next()
            except RefoldError as error:
                if self._is_stopping:
                    return
                _later(error)
                wait_s = None
            rested_s = time.monotonic()
            used_s = time.thread_time() - used_s
            self._stopped.wait(pause_s(used_s, rested_s - begun_s, self._settings.cpu_share))
            while not self._is_woken and (left_s := self._rest_s()) > 0:
                if self._stopped.wait(min(left_s, _LOOK_S)):
                    return
            wait_s = None if wait_s is None else max(0.0, wait_s - (time.monotonic() - rested_s))

    def _next(self) -> float | None:
        """Seal the partitions that are most overdue; returns the seconds until one may be due, if known."""
        with self._one_at_a_time:
            self._prepare()
            partitions, wait_s = self._due_most()
            if not partitions:
                return wait_s
            sealed = self._seal(partitions, partial(self._meanwhile, partitions))
            self._collect_when_due(sealed)
            return 0.0

    def _meanwhile(self, under_way: Collection[int]) -> None:
        """Seal another partition that is due. Does not collect garbage, because that would remove the unfinished
        epoch.
        """
        partitions, _ = self._due_most(but=under_way)
        if partitions and not self._is_stopping and self._rest_s() <= 0:
            self._seal(partitions[:1])

    def _used_s(self) -> float:
        """The processor time of this thread and of the sealing process, in seconds, as far as it is known."""
        return time.thread_time() + self._sealer.used_s

    def _rest_s(self) -> float:
        """The seconds to rest now because of the pace."""
        now_s, pace = time.monotonic(), self._pace
        if pace is None or now_s - self._folded_at_s > self._settings.idle_s:
            return 0.0
        if any(count - self._at(each)[0] >= pace.unsealed_max for each, count in list(self._folded.items())):
            return 0.0
        begun_s, used_s = self._begun
        return pause_s(self._used_s() - used_s, now_s - begun_s, pace.share)

    def _due_most(self, but: Collection[int] = ()) -> tuple[list[int], float | None]:
        """The partitions that are most overdue, up to `at_once`, or else the seconds until one may be due, if known."""
        now_ms, share = self._clock_ms(), self._share
        behind = {each: folded - self._at(each)[0] for each, folded in list(self._folded.items()) if each not in but}
        early_ms = {
            each: 0 if self._is_urgent(each, behind[each], now_ms) else self._every_ms - (now_ms - self._at(each)[1])
            for each in behind if behind[each] >= share
        }  # fmt: skip
        due = [each for each, left_ms in early_ms.items() if not 0 < left_ms <= self._every_ms]
        if due:
            return sorted(due, key=behind.__getitem__, reverse=True)[: self._at_once], None
        return [], min(early_ms.values()) / 1000 if early_ms else None

    def _is_urgent(self, partition: int, behind: int, now_ms: int) -> bool:
        """Whether a partition is due before `every_ms`."""
        if self._pace is not None and behind >= self._pace.unsealed_max:
            return True
        if not self._touched.is_urgent(partition):
            return False
        whole_due = self._whole_due.get(partition)
        return whole_due is None or behind * self._every_ms < whole_due * (now_ms - self._at(partition)[1])

    @property
    def _share(self) -> int:
        return max(1, self._settings.epoch_records // max(1, len(self._folded)))

    def _at(self, partition: int) -> tuple[int, int]:
        """The number of folded records when the partition was last sealed, and the time of that."""
        return self._sealed.get(partition, (0, 0))

    def _seal(self, partitions: Sequence[int], meanwhile: Callable[[], object] = lambda: None) -> list[Manifest]:
        """Seal an epoch of each partition; returns the manifests of those that did not fail."""
        now_ms, manifests = self._clock_ms(), []
        for partition in partitions:
            self._sealed[partition] = (self._folded[partition], now_ms)
        with self._failing_later(), self._views(partitions) as views:
            for view in views:
                with self._failing_later():
                    manifests.append(self._sealed_of(view, meanwhile))
        return manifests

    @contextmanager
    def _failing_later(self) -> Iterator[None]:
        """Log an error within the block, unless the thread is to end."""
        try:
            yield
        except RefoldError as error:
            if not self._is_stopping:
                _later(error)

    def _sealed_of(self, view: TableView, meanwhile: Callable[[], object] = lambda: None) -> Manifest:
        begun_ms = self._clock_ms()
        manifest = self._sealer.seal(view, meanwhile)
        self._whole_due[manifest.epoch.partition] = whole_due(manifest, self._settings)
        # A base from the whole table did not read it.
        self._touched.sealed(manifest.epoch.partition, manifest.epoch.offset)
        log_event(_log, "epoch_sealed", partition=manifest.epoch.partition, offset=manifest.epoch.offset,
             kind="base" if manifest.is_base else "delta", bytes=manifest.size,
             took_s=(self._clock_ms() - begun_ms) / 1000)  # fmt: skip
        return manifest

    def _collect_when_due(self, sealed: Iterable[Manifest]) -> None:
        now_ms = self._clock_ms()
        is_early = self._collected_at is not None and 0 <= now_ms - self._collected_at < self._settings.collect_every_ms
        if is_early or not any(manifest.is_base for manifest in sealed):
            return
        self._collected_at = now_ms
        partitions = takewhile(lambda _: not self._is_stopping, self._partitions())
        try:
            problems = [problem for each in self._collector.collect(partitions, now_ms) for problem in each.problems]
        except RefoldError as error:
            problems = [f"garbage of snapshots is collected later: {error}"]
        for problem in problems:
            _log.warning("%s", problem)

    def _require_epoch(self, epoch: Epoch) -> Epoch:
        if self._store.manifest_bytes(epoch) is None:
            raise no_such_epoch(epoch)
        return epoch


def pause_s(used_s: float, took_s: float, share: float) -> float:
    """Return how long to rest after an epoch, in seconds.

    Args:
        used_s: The processor time that the epoch used, in seconds.
        took_s: How long it took, in seconds.
        share: The share of one processor that sealing may use, from 0 to 1.
    """
    return max(0.0, used_s / share - took_s)


def _later(error: RefoldError) -> None:
    _log.warning("no snapshot was made, the next one is tried later: %s", error)
