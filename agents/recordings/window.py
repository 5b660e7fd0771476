"""Some steps of a long run, read without the others.

1. The run's head is read as for a whole recording (load.py); for a fork also those of its parents.
2. Only the wanted steps are looked up, by name: a step before a fork is its parent's. The one before the first is read
   too, because a step does not repeat the hashes of the step before.
3. The number of steps of a run that has not ended is not recorded. It is found by looking for a missing step at doubled
   distances, then by halving.
4. The body of a request that continues one outside the window stays as it is stored (journal/repeated_bodies.py).

States, and hashes computed from content, need every step; a window has neither. Only runs that a recorder wrote have
windows: an imported or received run is one entity or a few, and is read whole.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

from refold.agents.journal.record import Recording, Step
from refold.agents.journal.repeated_bodies import BodyReader
from refold.agents.recordings.fields import Fields, PlainFields
from refold.agents.recordings.load import heads_of, step_count, step_of
from refold.agents.vault import ValueCipher
from refold.streams.client import Log
from refold.streams.cut import Cut


class RunWindow(NamedTuple):
    """Some steps of a run.

    Attributes:
        head: The run without its steps and nested runs.
        total: How many steps the run has.
        steps: The steps in the window, in order.
        is_whole: Whether the steps are as in the whole recording, with all bodies.
    """

    head: Recording
    total: int
    steps: tuple[Step, ...]
    is_whole: bool


class LongRun:
    """A run that is read in windows.

    Args:
        log: The log.
        vault: Decrypts contents.
        run: The run's id.
        cut: The point.

    Raises:
        UnknownEntity, Expired, PartMissing, CorruptionError: As `load` raises them.
    """

    def __init__(self, log: Log, vault: ValueCipher, run: str, cut: Cut) -> None:
        self._log = log
        self._vault = vault
        self._cut = cut
        self._heads = heads_of(lambda names: log.states(names, cut), run, vault) or ()

    @property
    def has_windows(self) -> bool:
        """Whether the run, and each run that it is a fork of, was written by a recorder."""
        return bool(self._heads)

    @property
    def head(self) -> Recording:
        """The run without its steps and nested runs. The run must have windows."""
        return self._heads[0]

    @cached_property
    def count(self) -> int:
        """How many steps it has, including those before a fork. 0 if it has no windows."""
        if not self._heads:
            return 0
        head = self._heads[0]
        view = self._log.states([f"run/{head.run}"], self._cut)[f"run/{head.run}"]
        ended = step_count(PlainFields(view))
        if ended is not None:
            return ended
        last, distance = head.forked_at, 1
        while self._exists(last + distance):
            last, distance = last + distance, distance * 2
        while distance > 1:
            distance //= 2
            last += distance if self._exists(last + distance) else 0
        return last

    def window(self, first: int, last: int) -> RunWindow:
        """Return the steps from number `first` to `last`, as far as they exist.

        Raises:
            Expired: The content of a step is gone.
            CorruptionError: A stored step is invalid.
        """
        numbers = range(max(1, first - 1), min(last, self.count) + 1)
        names = {number: f"step/{self._owner(number)}#{number}" for number in numbers}
        views = self._log.states(list(names.values()), self._cut)
        bodies, before = BodyReader(keeps_unknown=True), None
        steps: list[Step] = []
        for number, name in names.items():
            if name not in views:
                break
            before = step_of(number, Fields(views[name], self._vault), before, bodies)
            steps += [before] if number >= first else []
        return RunWindow(self._heads[0], self.count, tuple(steps), not bodies.unknown)

    def _exists(self, number: int) -> bool:
        return bool(self._log.states([f"step/{self._owner(number)}#{number}"], self._cut))

    def _owner(self, number: int) -> str:
        """Return the run that recorded a step: this one, or a parent before the fork."""
        found = self._heads[0]
        for parent in self._heads[1:]:
            if number > found.forked_at:
                break
            found = parent
        return found.run
