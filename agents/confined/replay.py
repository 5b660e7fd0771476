"""A replay or a fork in a separate process that the kernel cuts off from the outside (agents/confined/kernel.py).

A replay (`replayed_confined`):

1. First, this process looks up the values of everything that the run read, in a log in a folder or on Kafka. The
   replaying process gets them with the recording, in memory, and no descriptor that leads outside.
2. The process confines itself, then imports the agent's code and replays it, under the guard as well.
3. If the kernel refuses to confine it, no code is run: NotConfinable.
4. Operations that the guard sees are denied with their location, as in any replay. An operation outside Python ends the
   process by SIGSYS: NetworkDenied here, with the current Python line.

A fork (`forked_confined`):

1. This process looks up everything that the parent read.
2. The confined process runs the agent's code, answered only by the parent's recording and the patch (the policy
   `recorded`), under the guard as well. It reports its actions line by line (agents/confined/journal.py).
3. When it has ended, the run is begun in the log, and the lines are written, including those of nested runs. If the
   kernel ended it, everything that had not ended failed with NetworkDenied. A process that is killed here before that
   has recorded nothing.
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
from refold.agents.recorder.sinks import RunSink
from refold.agents.redaction.redactor import Redact, Redactor
from refold.agents.replay.memory_runs import Fields
from refold.agents.replay.run import Replayed
from refold.avro.errors import InputError, RefoldError


def replayed_confined(
    entry: str, recording: Recording, *, fields: Fields | None = None, redact: Redact | None = None,
    redactor: str = "", key: bytes | None = None, golden: Mapping[str, Plain] | None = None, base: Path | None = None,
) -> Replayed:  # fmt: skip
    """Run an agent's code, by its name, against a recording, confined; otherwise as `replayed`.

    redactor: a redactor's name, instead of `redact`. key: of the redactor's tokens. golden: the answers of a golden
    trace that is not exact. base: the folder from which names are imported [this one].
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
    """A redactor for another process: a function's name, or the object itself."""
    if redact is None:
        return "", b""
    if not isinstance(redact, Redactor):
        return entry_for(redact, "redactor"), b""
    try:
        return "", pickle.dumps(redact)
    except Exception as error:  # pickle raises whatever the object does
        raise InputError(
            f"the redactor cannot be passed to the confined process ({error}): give a function of a module that makes "
            "it, or rules that are functions of a module"
        ) from error


def reads_of(recording: Recording, fields: Fields | None) -> Iterator[ReadReply]:
    """Yield the values of everything that a run read, for a process without a log."""
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


Begin = Callable[[], tuple[RunSink, BeginChild]]
"""Begins the child's run in the log. The second part begins its nested runs."""


def forked_confined(
    begin: Begin, entry: str, head: Recording, parent: Recording, now_micros: Callable[[], int], *, fields: Fields,
    redact: Redact | None, key: bytes | None,
) -> None:  # fmt: skip
    """Run an agent's code, by its name, as a fork; the log records how it ended.

    head: the child's, with parent, forked_at and patch. key: of the redactor's tokens. Departure if the code departed
    from the parent's recording, or tried to reach outside. InputError if it cannot be imported, and NotConfinable if
    the kernel refuses: then nothing was run, and nothing is in the log.
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
    problem = problem or _departed(found, head.run, has_ended=written.has_ended)
    now = now_micros()
    written.depart(failure_of(problem or without_answer(found, head.run), now), now)
    if problem is not None:
        raise problem


def _departed(found: ProcessEnd, run: str, *, has_ended: bool) -> Exception | None:
    if found.denied is not None:
        return found.denied
    if found.answer is None or not (has_ended or found.answer.left):
        return without_answer(found, run)
    return None if found.answer.left is None else found.answer.left.departure(run)
