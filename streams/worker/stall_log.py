"""Logs what partitions wait for, once each: when a wait begins, when its reason changes, and when it is over."""

from __future__ import annotations

import logging

from refold.streams.events import event_of

_log = logging.getLogger(__name__)


class Waits:
    """Of one thread; `of` of any. what: how a partition is named, before its number."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._known: dict[int, str] = {}

    def of(self, partition: int) -> str:
        """What it waits for; empty for nothing."""
        return self._known.get(partition, "")

    def note(self, partition: int, waits_for: str) -> None:
        """It waits for this now; empty for nothing."""
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
        """It is somebody else's."""
        self._known.pop(partition, None)
