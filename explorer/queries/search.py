"""Full-text search over the turns of all runs: the answer of `refold run search`. See sinks/search."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from refold.agents.log import AgentLog
from refold.agents.recordings.find import time_of
from refold.avro.times import time_text
from refold.explorer.queries.run_shapes import usage_json
from refold.sinks.run import SinkWatch, keep_up
from refold.sinks.search.database import SearchDatabase
from refold.sinks.search.find import SearchConditions, SearchHit, TurnFinder, search
from refold.sinks.search.sink import SearchSink


@dataclass(slots=True)
class SearchAnswer:
    """The answer of a search.

    Attributes:
        cut: The position of the index, as text; empty if it has none.
        hits: The turns found.
        unread: Entities that were found but can no longer be read.
        sealed_left_out: How many turns are not searched, because they are sealed and their words are not indexed.
    """

    cut: str
    hits: list[SearchHit]
    unread: list[str] = field(default_factory=list)
    sealed_left_out: int = 0

    def json(self) -> dict[str, Any]:
        """Return the answer as `--json` prints it. A step of null means the run as a whole, or a conversation."""
        return {**asdict(self), "hits": [_hit_json(each) for each in self.hits]}


@contextmanager
def search_index(
    log: AgentLog, path: Path | None, *, has_sealed: bool | None, updates: bool, watch: SinkWatch | None = None
) -> Iterator[SearchDatabase]:
    """Open the index of a log, and bring it up to the log's end unless another process does that.

    Args:
        log: The log that is indexed.
        path: The file of the index; None: the default one.
        has_sealed: Whether sealed content is indexed; None: as the index was created.
        updates: Whether the index is brought up to the log's end.
        watch: Observes the progress of the update.

    Raises:
        SinkRefused: The file is damaged or is not such an index. It may also be raised while the index is read.
        SinkBusy: Another process keeps the file locked.
    """
    with closing(SearchSink(path, has_sealed=has_sealed)) as sink:
        try:
            sink.attach(log.port)
            if updates and sink.is_mine():
                keep_up(log.port, sink, follow=False, stop=Event(), watch=watch)
            yield sink.database
        except sqlite3.DatabaseError as error:
            raise sink.database.failure(error) from None


def searched(database: SearchDatabase, log: AgentLog, wanted: SearchConditions, limit: int) -> SearchAnswer:
    """Return the newest turns that meet every condition."""
    unread: list[str] = []
    hits = search(database, log, wanted, limit, unread.append)
    left_out = sealed_left_out(database, wanted.text)
    return SearchAnswer("" if database.cut is None else str(database.cut), hits, unread, left_out)


def sealed_left_out(database: SearchDatabase, text: str) -> int:
    """Return how many turns a search for a text leaves out because their content is sealed and not in the index."""
    return 0 if database.has_sealed or not text else database.sealed_count


def runs_with(database: SearchDatabase, log: AgentLog, text: str) -> set[str]:
    """Return the ids of the runs in which one turn contains every word of a text."""
    found = {each.owner for each in TurnFinder(database, log.vault.ring).find(SearchConditions(text))}
    of_sessions = [each.partition("/")[2] for each in found if each.startswith("agent_session/")]
    runs = {each.partition("/")[2] for each in found if each.startswith("run/")}
    return runs | {run for session in of_sessions for run in database.runs_of(session)}


def search_conditions(since: str | None, until: str | None, **given: Any) -> SearchConditions:
    """Return the conditions of a search.

    Args:
        since: Only turns that began at this time or later, in RFC 3339; None: no limit.
        until: Only turns that began at this time or before, in RFC 3339; None: no limit.
        given: The other conditions, by their names in SearchConditions.

    Raises:
        InputError: A time cannot be read.
    """
    return SearchConditions(since=time_of(since, "since"), until=time_of(until, "until"), **given)


def _hit_json(hit: SearchHit) -> dict[str, Any]:
    found = hit.found
    return {
        "run": hit.run or None,
        "agent": hit.agent or None,
        "entity": found.entity,
        "step": found.step or None,
        "at": time_text(found.at) if found.at else None,
        "error": found.error or None,
        "snippet": hit.snippet or None,
        "usage": usage_json(hit.usage),
    }
