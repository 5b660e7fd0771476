"""A fork whose code runs in a process that the kernel cuts off from the outside (agents/confined/kernel.py).

1. This process looks up everything that the parent read.
2. The confined process runs the agent's code, answered only by the parent's recording and the patch (the policy
   `recorded`), under the guard as well. It reports its actions line by line (agents/confined/journal.py).
3. When it has ended, the run is begun in the log, and the lines are written, including those of nested runs. If the
   kernel ended it, everything that had not ended failed with NetworkDenied. A process that is killed here before that
   has recorded nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from refold.agents.confined.journal import BeginChild, JournalRecord
from refold.agents.confined.process import ProcessEnd, ended, without_answer
from refold.agents.confined.protocol import Question
from refold.agents.confined.replay import reads_of, shipped
from refold.agents.journal.record import Recording
from refold.agents.recorder.failures import failure_of
from refold.agents.recorder.sinks import RunSink
from refold.agents.redaction.redactor import Redact
from refold.agents.replay.memory_runs import Fields
from refold.avro.errors import InputError

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
