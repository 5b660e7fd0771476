"""Conditions of a worker's environment: whether they hold, since when, and why not.

Written by one thread, read by any.

Stalls of partitions are logged once each: when a stall starts, when its reason changes, and when it ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from refold.streams.events import event_of
from refold.streams.log.kafka.topic_problems import TopicProblem
from refold.streams.log.port import Foreign, SetAside

_log = logging.getLogger(__name__)


class StallLog:
    """Logs stalls. For one thread; `of` may be called from any.

    Args:
        what: The text before a partition's number.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._known: dict[int, str] = {}

    def of(self, partition: int) -> str:
        """Return what a partition waits for; empty if it does not wait."""
        return self._known.get(partition, "")

    def note(self, partition: int, waits_for: str) -> None:
        """Record what a partition waits for now; empty if it does not wait."""
        known = self.of(partition)
        if waits_for == known:
            return
        self._known[partition] = waits_for
        if waits_for:
            _log.warning("%s %d waits: %s", self._what, partition, waits_for,
                         extra=event_of("partition_waits", partition=partition, why=waits_for))  # fmt: skip
        else:
            _log.warning(
                "%s %d goes on", self._what, partition, extra=event_of("partition_goes_on", partition=partition)
            )

    def forget(self, partition: int) -> None:
        """Forget a partition that belongs to another worker now."""
        self._known.pop(partition, None)


class Condition(NamedTuple):
    """Whether something holds, and since when, in milliseconds since 1970.

    Attributes:
        why: The problem if it does not hold.
    """

    holds: bool
    since_ms: int
    why: str = ""

    def seconds(self, now_ms: int) -> float:
        """Return how long the condition has been unchanged, in seconds."""
        return max(0, now_ms - self.since_ms) / 1000


class CurrentCondition:
    """A condition that changes. `now` is replaced whole, so any thread may read it."""

    def __init__(self, clock_ms: Callable[[], int], why: str) -> None:
        """Create the condition; it does not hold yet."""
        self._clock_ms = clock_ms
        self.now = Condition(False, clock_ms(), why)

    def note(self, holds: bool, why: str = "") -> Condition | None:
        """Record the state. Return the previous condition if `holds` changed; else None, and `since_ms` is kept."""
        before = self.now
        if before.holds != holds:
            self.now = Condition(holds, self._clock_ms(), why)
            return before
        if before.why != why:
            self.now = before._replace(why=why)
        return None


class WorkerCondition(NamedTuple):
    """A worker's condition beyond its partitions.

    Attributes:
        broker: Whether one answers.
        group: Whether it is a member; None until it asks to join.
        folder: Whether its tables can be written.
        failure: The error that ended its fold.
        brokers, group_lag, unfit: As in streams/worker/broker_watch.py.
        held, pending: The types and versions that wait for code (streams/held_types.py).
        foreign: The records that this worker skipped because refold did not write them.
        damaged: Likewise, because their batches cannot be read.
    """

    broker: Condition
    group: Condition | None
    folder: Condition
    failure: str = ""
    brokers: int = 0
    group_lag: Mapping[int, int] = {}
    unfit: tuple[TopicProblem, ...] = ()
    held: int = 0
    pending: int = 0
    foreign: Sequence[Foreign] = ()
    damaged: Sequence[SetAside] = ()


def healthy() -> WorkerCondition:
    """Return a condition without problems."""
    fine = Condition(True, 0)
    return WorkerCondition(fine, fine, fine, brokers=1)
