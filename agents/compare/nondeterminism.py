"""Values that differ in every live run: clock, randomness, generated ids. They are no difference by themselves.

Two live runs of one agent get different times and random ids, and put them into their arguments and states. When a run
gets such an answer, its counterpart in the other run is noted, and a's trees are compared as b would have written them.
Each run's own id is such a value too. Texts are replaced wherever they occur, from 8 characters on; numbers only as
whole values; a time also as its ISO text and as seconds. A value computed from them (a time plus an hour) no longer
matches, and counts as different.
"""

from __future__ import annotations

import datetime as dt

from refold.agents.journal.delta import is_same
from refold.agents.journal.record import Call, Kind, Plain
from refold.avro.times import EPOCH

FRESH: frozenset[Kind] = frozenset({"now", "random", "uuid", "observe"})
"""Kinds whose answers differ in every live run."""

CHARACTERS_MIN = 8


class Renaming:
    """Names of a and what b calls the same."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._numbers: dict[int | float, int | float] = {}

    def note(self, a: Plain, b: Plain) -> None:
        """From here on a's value stands for b's."""
        if isinstance(a, str) and isinstance(b, str):
            if a != b and min(len(a), len(b)) >= CHARACTERS_MIN:
                self._texts[a] = b
        elif type(a) in (int, float) and type(b) in (int, float) and a != b:
            self._numbers[a] = b

    def heard(self, a: Call, b: Call) -> None:
        """Note the answers to the same request, if its kind is one of these."""
        if a.asked.kind in FRESH:
            self.note(a.answer, b.answer)
        if a.asked.kind == "now":
            for one, other in zip(_forms(a.answer), _forms(b.answer), strict=False):
                self.note(one, other)

    def is_same(self, a: Plain, b: Plain) -> bool:
        """Whether b is a by other names."""
        return is_same(a, b) or (bool(self._texts or self._numbers) and is_same(self.of(a), b))

    def of(self, a: Plain) -> Plain:
        """a's tree as b would have it."""
        if isinstance(a, str):
            for old, new in self._texts.items():
                if old in a:
                    a = a.replace(old, new)
            return a
        if type(a) in (int, float):
            return self._numbers.get(a, a)
        if isinstance(a, dict):
            return {self.of(key): self.of(value) for key, value in a.items()}
        return [self.of(each) for each in a] if isinstance(a, list) else a


def _forms(micros: Plain) -> tuple[Plain, ...]:
    """Return the forms of a time that need no computation: its text, with or without a zone, and seconds."""
    try:
        moment = EPOCH + dt.timedelta(microseconds=micros)
    except (TypeError, OverflowError):
        return ()
    text = moment.replace(tzinfo=None).isoformat()
    return text, moment.timestamp()
