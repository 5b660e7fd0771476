"""Finds a run by its id or the beginning of its id."""

from __future__ import annotations

from msgspec.structs import replace

from refold.agents.journal.record import Recording
from refold.agents.log import AgentLog
from refold.agents.recordings.find import run_keys
from refold.agents.recordings.load import near
from refold.agents.recordings.window import LongRun
from refold.avro.errors import InputError, UnknownEntity
from refold.streams.client import Log
from refold.streams.cut import Cut


def known_run(log: Log, given: str, cut: Cut) -> str:
    """Return the full id of a run.

    Args:
        given: The id, or the beginning of it.
        cut: The point at which the run is looked up.

    Raises:
        UnknownEntity: No run matches.
        InputError: Several runs match.
    """
    text = given.removeprefix("run/")
    if text and log.states([f"run/{text}"], cut):
        return text
    every = (name.removeprefix("run/") for name in run_keys(log, cut))
    found = sorted(each for each in every if text and each.startswith(text))
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"{text}: {len(found)} runs begin with it; give more of the id: {', '.join(found[:3])}")
    raise UnknownEntity(f"no run {text} is in this log; {near(log, text)}")


def recorded_run(log: AgentLog, given: str, cut: Cut) -> Recording:
    """Return the recording of a run. It raises as `known_run` does."""
    return log.recording(known_run(log, given, cut), cut)


def recorded_step(log: AgentLog, given: str, cut: Cut, number: int | None) -> Recording:
    """Return the recording of a run for readers of one of its steps, or of all. It raises as `known_run` does.

    Args:
        log: The log.
        given: The run's id, or the beginning of it.
        cut: The point.
        number: The number of the step; None: all. If that step can be read without the others, the recording has no
            other step.
    """
    if number is not None:
        long = LongRun(log, log.vault, known_run(log, given, cut), cut)
        if long.has_windows:
            found = long.window(number, number)
            if found.steps and found.is_whole:
                return replace(found.head, steps=found.steps)
    return recorded_run(log, given, cut)
