"""A replay or a fork in a separate process that the kernel cuts off from the outside (agents/confined/kernel.py).

A replay (`replayed_confined`):

1. First, this process looks up the values of everything that the run read, in a log in a folder or on Kafka. The
   replaying process gets them with the recording, in memory, and no descriptor that leads outside.
2. The process confines itself, then imports the agent's code and replays it, with the guard in Python as well.
3. If the kernel refuses to confine it, no code is run: NotConfinable.
4. Operations that the guard detects are denied with their location, as in any replay. An operation outside Python ends
   the process by SIGSYS. The caller gets NetworkDenied with the current Python line.

A fork (`forked_confined`):

1. This process looks up everything that the parent read.
2. The confined process runs the agent's code, with the guard as well. Its calls are answered only by the parent's
   recording and the patch (the policy `recorded`). It reports its actions line by line (agents/confined/journal.py).
3. When it has ended, the run is begun in the log, and the lines are written, including those of nested runs. If the
   kernel ended it, everything that had not ended is recorded as failed with NetworkDenied. If this process is killed
   before that, nothing is recorded.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from refold.agents.confined.journal import BeginChild, JournalRecord
from refold.agents.confined.process import ProcessEnd, ended, without_answer
from refold.agents.confined.protocol import ErrorReply, Question, ReadReply
from refold.agents.entry import entry_for
from refold.agents.journal.record import Plain, Recording
from refold.agents.recorder.failures import failure_of
from refold.agents.recorder.run_sinks import RunSink
from refold.agents.redaction.redactor import Redact, Redactor
from refold.agents.replay.memory_runs import Fields
from refold.agents.replay.run import Replayed
from refold.avro.errors import InputError, RefoldError


def replayed_confined(
    entry: str, recording: Recording, *, fields: Fields | None = None, redact: Redact | None = None,
    redactor: str = "", key: bytes | None = None, golden: Mapping[str, Plain] | None = None, base: Path | None = None,
) -> Replayed:  # fmt: skip
    """Run an agent's code, by its name, against a recording, confined; otherwise as `replayed`.

    Args:
        entry: The name of the agent.
        recording: The recorded run.
        fields: Looks up the values of recorded reads.
        redact: The redactor.
        redactor: The name of a redactor, instead of `redact`.
        key: The key of the redactor's tokens.
        golden: The answers of a golden trace that is not exact.
        base: The folder from which names are imported; the current folder by default.

    Raises:
        Departure: The code departed from the recording; NetworkDenied if it tried to reach outside.
        NotConfinable: The kernel refuses to confine the process; no code was run.
        InputError: The code or the redactor cannot be used, or the process ended without an answer.
    """
    named, pickled = shipped(redact)
    here = Path.cwd()
    question = Question(
        recording=recording, entry=entry, base=str(base or here), path=[each or str(here) for each in sys.path],
        reads=list(reads_of(recording, fields)), redactor=redactor or named, redact=pickled, key=key,
        golden=None if golden is None else dict(golden),
    )  # fmt: skip
    found = ended(question)
    if found.denied is not None:
        raise found.denied
    answer = found.answer
    if answer is None:
        raise without_answer(found, recording.run)
    if answer.error is not None:
        raise answer.error.error()
    if answer.left is not None:
        raise answer.left.departure(recording.run)
    assert answer.now is not None
    return Replayed(recording, answer.now, answer.unused, answer.escapes, answer.unheld)


def shipped(redact: Redact | None) -> tuple[str, bytes]:
    """Prepare a redactor for another process.

    Returns:
        A function's name and no bytes, or no name and the pickled Redactor. Both are empty without a redactor.

    Raises:
        InputError: The redactor cannot be passed to another process.
    """
    if redact is None:
        return "", b""
    if not isinstance(redact, Redactor):
        return entry_for(redact, "redactor"), b""
    try:
        return "", pickle.dumps(redact)
    except Exception as error:  # pickle raises whatever the object raises
        raise InputError(
            f"the redactor cannot be passed to the confined process ({error}): give a function of a module that makes "
            "it, or rules that are functions of a module"
        ) from error


def reads_of(recording: Recording, fields: Fields | None) -> Iterator[ReadReply]:
    """Yield the values of everything that a run read, for a process without a log.

    Args:
        recording: The run, with its nested runs.
        fields: Looks up the values; None yields nothing.
    """
    if fields is None:
        return
    for step in (step for run in recording.family for step in run.steps):
        for attempt in step.attempts:
            for call in attempt.calls:
                if call.asked.kind == "read" and isinstance(call.answer, dict) and "fields" not in call.answer:
                    yield _read(call.asked.name, call.answer, fields)


def _read(entity: str, answer: Plain, fields: Fields) -> ReadReply:
    try:
        return ReadReply(entity, answer, fields=dict(fields(entity, answer)))
    except RefoldError as error:
        return ReadReply(entity, answer, error=ErrorReply.of(error))


BeginRun = Callable[[], tuple[RunSink, BeginChild]]
"""Begins the child's run in the log. Returns the run's sink, and what begins its nested runs."""


def forked_confined(
    begin: BeginRun, entry: str, head: Recording, parent: Recording, now_micros: Callable[[], int], *, fields: Fields,
    redact: Redact | None, key: bytes | None,
) -> None:  # fmt: skip
    """Run an agent's code, by its name, as a fork; the log records how it ended.

    Args:
        begin: Begins the fork in the log; called after the process has ended.
        entry: The name of the agent.
        head: The head of the fork, with parent, forked_at and patch.
        parent: The recording that is forked.
        now_micros: Returns the time, microseconds.
        fields: Looks up the values of recorded reads.
        redact: The redactor.
        key: The key of the redactor's tokens.

    Raises:
        Departure: The code departed from the parent's recording, or tried to reach outside.
        InputError: The code cannot be imported. Nothing was run, and nothing is in the log.
        NotConfinable: The kernel refuses to confine the process. Nothing was run, and nothing is in the log.
    """
    named, pickled = shipped(redact)
    here = Path.cwd()
    question = Question(
        recording=head, parent=parent, entry=entry, base=str(here), path=[each or str(here) for each in sys.path],
        reads=list(reads_of(parent, fields)), redactor=named, redact=pickled, key=key,
    )  # fmt: skip
    found = ended(question)
    if not found.lines and found.answer is not None and found.answer.error is not None:
        raise found.answer.error.error()
    written = JournalRecord(head.run, *begin())
    problem: Exception | None = None
    try:
        written.write(found.lines)
    except InputError as error:
        problem = error
    problem = problem or _departure_error(found, head.run, has_ended=written.has_ended)
    now = now_micros()
    written.depart(failure_of(problem or without_answer(found, head.run), now), now)
    if problem is not None:
        raise problem


def _departure_error(found: ProcessEnd, run: str, *, has_ended: bool) -> Exception | None:
    if found.denied is not None:
        return found.denied
    if found.answer is None or not (has_ended or found.answer.left):
        return without_answer(found, run)
    return None if found.answer.left is None else found.answer.left.departure(run)
