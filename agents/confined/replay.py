"""A replay in a separate process that the kernel cuts off from the outside (agents/confined/kernel.py).

1. First, this process looks up the values of everything that the run read, in a log in a folder or on Kafka. The
   replaying process gets them with the recording, in memory, and no descriptor that leads outside.
2. The process confines itself, then imports the agent's code and replays it, under the guard as well.
3. If the kernel refuses to confine it, no code is run: NotConfinable.
4. Operations that the guard sees are denied with their location, as in any replay. An operation outside Python ends the
   process by SIGSYS: NetworkDenied here, with the current Python line.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from refold.agents.confined.process import ended, without_answer
from refold.agents.confined.protocol import ErrorReply, Question, ReadReply
from refold.agents.entry import entry_for
from refold.agents.journal.record import Plain, Recording
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
    except Exception as error:
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
