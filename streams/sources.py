"""The source and the time of an observation, from what the caller gave."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

from refold.avro.errors import ValidationError
from refold.avro.observation import Source
from refold.avro.times import datetime_micros, parse_time

Time = int | dt.datetime | str


def micros_of(given: Time, path: str = "observed_at") -> int:
    """Convert a time.

    Args:
        given: RFC 3339 text, an aware datetime, or microseconds since 1970.
        path: What it is the time of, for the error.

    Returns:
        Microseconds since 1970.

    Raises:
        ValidationError: It is not a time, or has no time zone.
    """
    if isinstance(given, str):
        return parse_time(given, path)
    if isinstance(given, dt.datetime):
        if given.tzinfo is None:
            raise ValidationError(path, "a datetime with its time zone", given)
        return datetime_micros(given)
    return given


class Sources:
    """Counts seq for agents that are given by name alone, each in a new run of this process."""

    def __init__(self, agent: str, new_id: Callable[[], str]) -> None:
        self._agent = agent
        self._new_id = new_id
        self._current: dict[str, Source] = {}

    def peek(self, given: Source | str | None) -> Source:
        """Return the source of the next observation, without advancing its seq.

        Args:
            given: A Source with its own seq; an agent's name; None for this process.

        Raises:
            ValidationError: It is neither.
        """
        if isinstance(given, Source):
            return given
        agent: object = self._agent if given is None else given
        if not isinstance(agent, str):
            raise ValidationError("source", "a Source, an agent's name, or nothing", given)
        source = self._current.get(agent)
        if source is None:
            source = self._current[agent] = Source(agent, self._new_id())
        return source

    def advance(self, source: Source) -> None:
        """Count an accepted observation, of a source that `peek` counts. A refused one uses no seq."""
        self._current[source.agent] = source._replace(seq=source.seq + 1)
