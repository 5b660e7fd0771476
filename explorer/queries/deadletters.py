"""Records that are not valid observations: the answer of `refold deadletters list`."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from refold.agents.log import AgentLog
from refold.avro.times import millis_text
from refold.explorer.queries.query import options_of
from refold.explorer.queries.shapes import position_json
from refold.streams.client import Log
from refold.streams.deadletters import DeadLetterView, dead_letters

LETTERS_LISTED = 100


@dataclass(frozen=True, slots=True)
class DeadLettersQuery:
    """Counts all dead letters and lists the newest.

    Attributes:
        limit: How many are listed; 0: all.
    """

    limit: int = LETTERS_LISTED

    @property
    def arguments(self) -> list[str]:
        """The arguments of `refold deadletters list`."""
        return ["deadletters", "list", *options_of({"limit": str(self.limit)})]

    def answer(self, log: AgentLog) -> dict[str, Any]:
        """Return the number of dead letters by reason, and the newest of them."""
        return letters_json(*newest_of(DeadLetterFilter((), None, None, None).among(log), self.limit))


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """A selection of dead letters.

    Args:
        reasons: The reasons that match; empty: any.
        type_name: The entity type that matches; None: any.
        since: The point to start from, as WHEN; None: the beginning of the log.
        until: The point to end before, as WHEN; None: the end of the log.
    """

    reasons: tuple[str, ...]
    type_name: str | None
    since: str | None
    until: str | None

    @property
    def is_limited(self) -> bool:
        """Whether the selection has any condition."""
        return bool(self.reasons or self.type_name or self.since or self.until)

    def among(self, log: Log) -> Iterator[DeadLetterView]:
        """Yield the log's dead letters that match."""
        first = {} if self.since is None else log.point(self.since).cut.offsets
        last = None if self.until is None else log.point(self.until).cut.offsets
        return (
            each
            for each in dead_letters(log.port)
            if (not self.reasons or each.verdict.reason in self.reasons)
            and self.type_name in (None, each.type_name)
            and each.verdict.offset >= first.get(each.verdict.partition, 0)
            and (last is None or each.verdict.offset < last.get(each.verdict.partition, 0))
        )


def letter_json(letter: DeadLetterView) -> dict[str, Any]:
    """Return a dead letter in JSON, as the list shows it."""
    verdict = letter.verdict
    return {
        "position": position_json(letter.position),
        "deadletter": position_json(letter.position._replace(offset=letter.number)),
        "appended_at": millis_text(verdict.timestamp),
        "reason": verdict.reason,
        "detail": verdict.detail,
        "remedy": letter.remedy,
        "type": letter.type_name or None,
        "entity": letter.entity or None,
        "retry_of": None if letter.retry_of is None else position_json(letter.retry_of),
    }


def letters_json(counts: Counter[str], shown: Sequence[DeadLetterView]) -> dict[str, Any]:
    """Return a list of dead letters in JSON.

    Args:
        counts: The number of all dead letters by reason.
        shown: The dead letters to list.
    """
    listed = [letter_json(each) for each in shown]
    return {"count": counts.total(), "reasons": dict(counts.most_common()), "deadletters": listed}


def newest_of(found: Iterable[DeadLetterView], limit: int) -> tuple[Counter[str], list[DeadLetterView]]:
    """Return the number of dead letters by reason, and the newest, at most `limit` (0: all), by position."""
    counts: Counter[str] = Counter()
    shown = _newest(_count_reasons(found, counts), limit)
    return counts, shown


def _count_reasons(found: Iterable[DeadLetterView], counts: Counter[str]) -> Iterator[DeadLetterView]:
    for each in found:
        counts[each.verdict.reason] += 1
        yield each


def _newest(found: Iterable[DeadLetterView], limit: int) -> list[DeadLetterView]:
    """Return the newest `limit` dead letters, by position. Only that many are held in memory."""
    newest = found
    if limit:
        newest = heapq.nlargest(limit, found, key=lambda each: (each.verdict.timestamp, each.position))
    return sorted(newest, key=lambda each: each.position)
