"""refold's log messages: events with a name and fields, one line each (host/logs.py formats them).

They use standard logging, so a program that embeds a fold can handle them: a log record has the attributes `event` and
`fields`, and its message contains both.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from refold.streams.log.port import Foreign, SetAside

LETTERS_MAX = 10
LETTERS_EVERY_S = 60.0
PASSED_EVERY_S = 60.0


def log_event(log: logging.Logger, event: str, level: int = logging.INFO, **fields: object) -> None:
    """Log an event.

    Args:
        log: The logger.
        event: The event's name, as in docs/OPERATIONS.md.
        level: The level, as of logging.
        fields: Its fields. Those that are None are left out.
    """
    if not log.isEnabledFor(level):
        return
    given = {name: value for name, value in fields.items() if value is not None}
    text = " ".join([event, *(f"{name}={value}" for name, value in given.items())])
    log.log(level, "%s", text, extra=event_of(event, **given))


def event_of(event: str, **fields: object) -> dict[str, object]:
    """Return the argument `extra` for a logging call with its own message."""
    return {"event": event, "fields": fields}


def listed(numbers: Iterable[int]) -> str:
    """Partition numbers as one field."""
    return ",".join(map(str, sorted(numbers)))


class DeadLetterLog:
    """Logs dead letters, at most LETTERS_MAX in LETTERS_EVERY_S; then how many were left out. For one thread."""

    def __init__(self, log: logging.Logger, now_s: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._now_s = now_s
        self._begun_s = now_s()
        self._logged = 0
        self._suppressed = 0

    def log(self, partition: int, offset: int, reason: str) -> None:
        """Log that a record got a verdict."""
        self.flush_if_due()
        if self._logged < LETTERS_MAX:
            self._logged += 1
            log_event(self._log, "dead_letter", logging.WARNING, partition=partition, offset=offset, reason=reason)
        else:
            self._suppressed += 1

    def flush_if_due(self) -> None:
        """Begin the next interval if it is due."""
        if self._now_s() - self._begun_s >= LETTERS_EVERY_S:
            self.end()

    def end(self) -> None:
        """Log how many were left out, and begin the next interval."""
        now_s = self._now_s()
        if self._suppressed:
            log_event(self._log, "dead_letters_suppressed", logging.WARNING, count=self._suppressed,
                      seconds=round(now_s - self._begun_s))  # fmt: skip
        self._begun_s, self._logged, self._suppressed = now_s, 0, 0


class SkippedRecordsLog:
    """Logs how many records of a topic are skipped, when the number grew: at most once in PASSED_EVERY_S for each
    topic.

    For one thread.
    """

    def __init__(self, log: logging.Logger, now_s: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._now_s = now_s
        self._logged: dict[tuple[str, str], tuple[int, float]] = {}

    def update(self, event: str, found: Iterable[Foreign | SetAside]) -> None:
        """Check the present numbers of skipped records.

        Args:
            event: The name of the event to log.
        """
        now_s = self._now_s()
        for each in found:
            records, logged_s = self._logged.get((event, each.topic), (0, now_s - PASSED_EVERY_S))
            if each.records > records and now_s - logged_s >= PASSED_EVERY_S:
                self._logged[event, each.topic] = each.records, now_s
                log_event(self._log, event, logging.WARNING, topic=each.topic, records=each.records,
                          partition=each.first.partition, offset=each.first.offset)  # fmt: skip
