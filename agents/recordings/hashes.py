"""Find the run and step of a hash: of the chain after a step, of a whole run, or of a state.

1. Steps and runs are searched for a hash that begins with the given text. The log has no hashes of imported
   conversations; they are computed if nothing else is found.
2. A hash of the chain after a step takes precedence over the hash of a run, and that over the hash of a state.

Runs with the same content have the same hashes. Any of them is right, and the newest is returned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

from refold.agents.journal.record import Recording
from refold.agents.recordings.load import load, rebuilt
from refold.agents.vault import ValueCipher
from refold.avro.errors import InputError, UnknownEntity
from refold.streams.client import Log
from refold.streams.cut import Cut
from refold.streams.point import When
from refold.streams.view import StateView

DIGITS_MIN = 6
HEX = re.compile(r"[0-9a-f]{1,64}\Z")

What: TypeAlias = Literal["step", "run", "state"]
ORDER: tuple[What, ...] = ("step", "run", "state")
OF_STEPS: tuple[tuple[What, str], ...] = (("step", "turn_hash"), ("state", "state_after"))


class StateAfterStep(NamedTuple):
    """A run after one of its steps (0: before the first).

    Attributes:
        what: Which of its hashes matched.
        others: How many other runs and steps have the same hash.
    """

    run: str
    step: int
    what: What
    hash: str
    others: int = 0


class _Candidate(NamedTuple):
    started_at: int
    found: StateAfterStep


def at_hash(log: Log, vault: ValueCipher, given: str, at: When = None) -> StateAfterStep:
    """Find the run and step whose hash begins with a text.

    Args:
        log: The log.
        vault: Decrypts contents.
        given: At least 6 hexadecimal digits (`DIGITS_MIN`), in any case.
        at: The point; None is now.

    Raises:
        UnknownEntity: No hash begins with the text.
        InputError: The text is not a hash, or different hashes begin with it.
    """
    text = given.lower()
    if not HEX.match(text) or len(text) < DIGITS_MIN:
        raise InputError(f"{given!r} is not a hash: give at least {DIGITS_MIN} of its hexadecimal digits")
    cut = log.point(at).cut
    view = rebuilt(log, ("run", "step"), cut)
    places = [] if view is None else [each for each in _stored_hashes(view) if each.found.hash.startswith(text)]
    if not places and view is not None:
        places = [each for each in _imported_hashes(log, view, vault, cut) if each.found.hash.startswith(text)]
    for what in ORDER:
        found = [each for each in places if each.found.what == what]
        hashes = sorted({each.found.hash for each in found})
        if len(hashes) > 1:
            raise InputError(f"{given}: {len(hashes)} hashes begin with it; give more of it: {', '.join(hashes[:3])}")
        if found:
            newest = max(found, key=lambda each: (each.started_at, each.found.step))
            return newest.found._replace(others=len(found) - 1)
    raise UnknownEntity(
        f"no step, run or state with a hash like {given} is in this log; `refold run show RUN` names them"
    )


def _stored_hashes(view: StateView) -> Iterator[_Candidate]:
    started: dict[str, int] = {}
    for name in view:
        if name.startswith("run/"):
            fields, run = view[name].fields, name.removeprefix("run/")
            started[run] = fields.get("started_at", 0)
            if fields.get("hash"):
                yield _Candidate(started[run], StateAfterStep(run, fields.get("step_count", 0), "run", fields["hash"]))
    for name in view:
        if name.startswith("step/"):
            fields = view[name].fields
            run, number = fields.get("run", ""), fields.get("position", 0)
            for what, field in OF_STEPS if fields.get("status") == "committed" else ():
                if fields.get(field):
                    yield _Candidate(started.get(run, 0), StateAfterStep(run, number, what, fields[field]))


def _imported_hashes(log: Log, view: StateView, vault: ValueCipher, cut: Cut) -> Iterator[_Candidate]:
    runs = (name for name in view if name.startswith("run/") and view[name].fields.get("imported_from"))
    for run in runs:
        yield from _hashes_of(load(log, run.removeprefix("run/"), vault, cut))


def _hashes_of(recording: Recording) -> Iterator[_Candidate]:
    run, started = recording.run, recording.started_at
    if recording.hash:
        yield _Candidate(started, StateAfterStep(run, len(recording.steps), "run", recording.hash))
    for step in recording.steps:
        if step.hash:
            yield _Candidate(started, StateAfterStep(run, step.number, "step", step.hash))
            yield _Candidate(started, StateAfterStep(run, step.number, "state", step.state_after))
