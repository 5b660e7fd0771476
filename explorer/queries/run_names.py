"""Finds a run by its id or the beginning of its id."""

from __future__ import annotations

from refold.agents.journal.record import Recording
from refold.agents.log import AgentLog
from refold.agents.recordings.find import run_keys
from refold.agents.recordings.load import near
from refold.avro.errors import InputError, UnknownEntity
from refold.streams.client import Log
from refold.streams.cut import Cut


def known_run(log: Log, given: str, cut: Cut) -> str:
    """Return the full id of a run. given: the id, or the beginning of it.

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
