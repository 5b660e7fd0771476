"""Who speaks: a source for every observation, its seq counted per (agent, run) from 0."""

from __future__ import annotations

from collections.abc import Callable

from refold.avro.errors import ValidationError
from refold.avro.observation import Source


class Sources:
    """Counts for the agents that name no run and seq of their own, each in a fresh run of this process."""

    def __init__(self, agent: str, new_id: Callable[[], str]) -> None:
        self._agent = agent
        self._new_id = new_id
        self._current: dict[str, Source] = {}

    def next(self, given: Source | str | None) -> tuple[Source, Callable[[], None]]:
        """The source of the next observation, and what to call once it is accepted, so that refusals use no seq."""
        if isinstance(given, Source):
            return given, lambda: None
        agent: object = self._agent if given is None else given
        if not isinstance(agent, str):
            raise ValidationError("source", "a Source, an agent's name, or nothing", given)
        source = self._current.get(agent)
        if source is None:
            source = self._current[agent] = Source(agent, self._new_id())

        def count() -> None:
            self._current[agent] = source._replace(seq=source.seq + 1)

        return source, count
