"""Turns of all runs by what they say: what `refold run search` answers. See sinks/search."""

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
from refold.sinks.search.find import SearchHit, SearchWanted, TurnFinder, search
from refold.sinks.search.sink import SearchSink


@dataclass(slots=True)
class SearchAnswer:
    """cut: of the index. unread: entities that were found, and cannot be read any more. sealed_left_out: how many
    turns are sealed, and have no words in the index."""

    cut: str
    hits: list[SearchHit]
    unread: list[str] = field(default_factory=list)
    sealed_left_out: int = 0

    def json(self) -> dict[str, Any]:
        """As `--json` prints it. step is null where it is the run as a whole, or a conversation."""
        return {**asdict(self), "hits": [_hit_json(each) for each in self.hits]}


@contextmanager
def search_index(
    log: AgentLog, path: Path | None, *, has_sealed: bool | None, updates: bool, watch: SinkWatch | None = None
) -> Iterator[SearchDatabase]:
    """The index of a log, brought up to the log's end, unless another process does that.

    Args:
        path: of the file; None: the usual one.
        has_sealed: whether sealed content is in it; None: as it was made.

    Raises:
        SinkRefused: the file is damaged, or no such index; also where that shows when the index is read.
        SinkBusy: another process keeps it locked.
    """
    with closing(SearchSink(path, has_sealed=has_sealed)) as sink:
        try:
            sink.attach(log.port)
            if updates and sink.is_mine():
                keep_up(log.port, sink, follow=False, stop=Event(), watch=watch)
            yield sink.database
        except sqlite3.DatabaseError as error:
            raise sink.database.failure(error) from None


def searched(database: SearchDatabase, log: AgentLog, wanted: SearchWanted, limit: int) -> SearchAnswer:
    """The newest turns that have all that is wanted."""
    unread: list[str] = []
    hits = search(database, log, wanted, limit, unread.append)
    left_out = sealed_left_out(database, wanted.text)
    return SearchAnswer("" if database.cut is None else str(database.cut), hits, unread, left_out)


def sealed_left_out(database: SearchDatabase, text: str) -> int:
    """How many turns a search for a text leaves out, because their content is sealed and not in the index."""
    return 0 if database.has_sealed or not text else database.sealed_count


def runs_with(database: SearchDatabase, log: AgentLog, text: str) -> set[str]:
    """The ids of the runs of which a turn has every word of a text."""
    found = {each.owner for each in TurnFinder(database, log.vault.ring).find(SearchWanted(text))}
    of_sessions = [each.partition("/")[2] for each in found if each.startswith("agent_session/")]
    runs = {each.partition("/")[2] for each in found if each.startswith("run/")}
    return runs | {run for session in of_sessions for run in database.runs_of(session)}


def wanted_of(since: str | None, until: str | None, **given: Any) -> SearchWanted:
    """What is wanted. since, until: RFC 3339. InputError."""
    return SearchWanted(since=time_of(since, "since"), until=time_of(until, "until"), **given)


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
