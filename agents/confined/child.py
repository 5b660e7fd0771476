"""The process of a confined replay:

    python -P -m refold.agents.confined.child QUESTION ANSWER TRACE

All three are open descriptors. A question with a parent is a fork, any other is a replay. The process is confined
before any of the user's code is imported, so that import-time code is confined too. It exits without the interpreter's
shutdown: exit handlers of the code do not run.

The code of a fork's nested runs runs in the confined process too. Their records are written outside of it.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import sys
import time
from collections.abc import Callable, Mapping
from io import FileIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from refold.agents.confined.journal import ChildBegun, JournalSink, Line, OfChild, write_line
from refold.agents.confined.kernel import NotConfined, confine
from refold.agents.confined.process import whole
from refold.agents.confined.protocol import ChildReply, DepartureReply, ErrorReply, Question, ReadReply
from refold.agents.entry import Agent, agent_of
from refold.agents.golden.file import DefaultAnswer as GoldenAnswer
from refold.agents.golden.lenient import LenientAnswers
from refold.agents.journal.record import Plain, Recording
from refold.agents.recorder.answers import ChildAnswers, Departure
from refold.agents.recorder.children import ChildCall, RunOptions
from refold.agents.recorder.run import Run
from refold.agents.recorder.run_backend import Nondeterminism
from refold.agents.redaction.redactor import Redact, for_run, unredacted
from refold.agents.redaction.tokens import fresh_key
from refold.agents.replay.forked import ForkAnswers
from refold.agents.replay.guard import NetworkGuard
from refold.agents.replay.memory_runs import Fields, Reading, in_memory
from refold.agents.replay.patch import read_patch
from refold.agents.replay.run import Replayed, replayed
from refold.avro.errors import NotAnswerable


class JournalChildren:
    """Creates the nested runs of one run of a confined fork. See recorder/children.py."""

    def __init__(
        self, head: Recording, say: Callable[[Line], None], fields: Fields, redact: Redact, chance: Nondeterminism
    ) -> None:
        """Set up the nested runs of one run.

        Args:
            head: The head of the run in which they begin.
            say: Writes a line of the journal.
            fields: Looks up the values of recorded reads.
            redact: The redactor.
            chance: The run's clock and ids.
        """
        self._head = head
        self._say = say
        self._fields = fields
        self._redact = redact
        self._chance = chance

    def require_log(self, url: str) -> None:
        """Accept any log: a confined process reaches none."""

    def begin(self, head: Recording, options: RunOptions, within: ChildAnswers, call: ChildCall) -> Run:
        """As Children. A nested run that ended before the fork is created in memory."""
        if within.is_whole and within.recording is not None:
            redact = self._redact if within.recording.redacted else None
            return in_memory(within.recording, within.answers, self._fields, redact, None, call=call).run
        parent = self._head
        head = replace(
            head, kind=head.kind or parent.kind, user=head.user or parent.user, redacted=parent.redacted,
            started_at=self._chance.now_micros(),
        )  # fmt: skip
        self._say(ChildBegun(head, options))
        return Run(
            head, answers=within.answers, sink=JournalSink(lambda line: self._say(OfChild(head.run, line))),
            backend=Reading(self._fields), redact=self._redact, chance=self._chance, strays=options.strays,
            children=JournalChildren(head, self._say, self._fields, self._redact, self._chance), call=call,
        )  # fmt: skip


def reply_to(question: Question, trace: int, out: FileIO) -> ChildReply:
    """Confine this process, then do the replay or the fork.

    Args:
        question: The question.
        trace: The descriptor to which the stack of a denied operation is written.
        out: Receives the actions of a fork, one line each.

    Returns:
        The answer. It also reports errors of the user's code; they are not raised.
    """
    try:
        unheld = confine(trace, question.folder, [*question.path, question.base])
    except NotConfined as refused:
        return ChildReply(refused=str(refused))
    sys.dont_write_bytecode = True
    sys.path[:] = question.path
    base = Path(question.base)
    try:
        agent = agent_of(question.entry, base)
        redact = _redactor(question, base)
    except Exception as error:  # a user's module may raise anything when it is imported
        return ChildReply(error=ErrorReply.of(error))
    try:
        if question.parent is not None:
            _fork(question, question.parent, agent, redact, out)
            return ChildReply(unheld=unheld)
        done = _replay_question(question, agent, redact)
    except Departure as departure:
        return ChildReply(left=DepartureReply.of(departure))
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        return ChildReply(error=ErrorReply.of(error))
    return ChildReply(now=done.now, unused=done.unused, escapes=tuple(done.escapes), unheld=unheld)


def _replay_question(question: Question, agent: Agent, redact: Redact | None) -> Replayed:
    given = None if question.golden is None else [GoldenAnswer(*each) for each in question.golden.items()]
    return replayed(
        agent, question.recording, fields=_Values(question.reads).fields, redact=redact,
        answers=None if given is None else LenientAnswers(question.recording, given), confined_to=question.folder,
    )  # fmt: skip


def _fork(question: Question, parent: Recording, agent: Agent, redact: Redact | None, out: FileIO) -> None:
    """Run the fork. An exception of its code is the run's outcome, and not an error of this process."""
    head = question.recording
    answers = ForkAnswers(parent, head.forked_at, read_patch(head.patch), "recorded", is_confined=True)
    sink = JournalSink(lambda line: write_line(out, line))
    fields = _Values(question.reads).fields
    chance = Nondeterminism(lambda: time.time_ns() // 1000, lambda: uuid4().hex)
    redact = redact or unredacted
    run = Run(
        head, answers=answers, sink=sink, backend=Reading(fields), redact=redact, chance=chance,
        children=JournalChildren(head, lambda line: write_line(out, line), fields, redact, chance),
    )  # fmt: skip
    with NetworkGuard(answers.depart, confined_to=question.folder):
        if inspect.iscoroutinefunction(agent):
            asyncio.run(run.drive_async(agent))
        else:
            run.drive(agent)


def _redactor(question: Question, base: Path) -> Redact | None:
    redact: Redact | None = None
    if question.redactor:
        redact = agent_of(question.redactor, base, "redactor")
    elif question.redact:
        redact = pickle.loads(question.redact)
    key = question.key
    return None if redact is None else for_run(redact, fresh_key if key is None else lambda: key)


class _Values:
    """The values of recorded reads, looked up before the process was confined."""

    def __init__(self, reads: list[ReadReply]) -> None:
        self._reads = {_key(each.entity, each.answer): each for each in reads}

    def fields(self, entity: str, answer: Plain) -> Mapping[str, Any]:
        """Return the values of a recorded read, or raise the error of the lookup.

        Raises:
            NotAnswerable: The recording has no such read.
        """
        read = self._reads.get(_key(entity, answer))
        if read is None:
            raise NotAnswerable(f"{entity}: this read is not in the recording")
        if read.error is not None:
            raise read.error.error()
        return read.fields or {}


def _key(entity: str, answer: Plain) -> bytes:
    return msgspec.json.encode([entity, answer], order="sorted")


def main() -> None:
    """Read the question, answer it and exit; see the module."""
    question, answer, trace = (int(each) for each in sys.argv[1:])
    decoded = msgspec.json.decode(whole(question), type=Question)
    os.close(question)
    with os.fdopen(answer, "wb", buffering=0) as file:
        said = reply_to(decoded, trace, file)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        write_line(file, said)
    os._exit(0)


if __name__ == "__main__":
    main()
