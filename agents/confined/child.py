"""A confined replay's own process:

    python -P -m refold.agents.confined.child QUESTION ANSWER TRACE

All three are open descriptors. The process is confined before anything of the user's is imported, so that what a module
does while it is imported is held, too. It ends without the interpreter's own end: what the code registered for that is
not run.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from refold.agents.confined.exchange import Answer, Left, Question, Read, Told
from refold.agents.confined.kernel import NotConfined, confine
from refold.agents.entry import agent_of
from refold.agents.golden.file import Answer as GoldenAnswer
from refold.agents.golden.lenient import Lenient
from refold.agents.journal.record import Plain
from refold.agents.recorder.answers import Departure
from refold.agents.redaction.redactor import Redact, for_run
from refold.agents.redaction.tokens import fresh_key
from refold.agents.replay.run import replayed
from refold.avro.errors import NotAnswerable


def answer_to(question: Question, trace: int) -> Answer:
    """Confine this process, then do the replay."""
    try:
        confine(trace)
    except NotConfined as refused:
        return Answer(refused=str(refused))
    sys.path[:] = question.path
    base = Path(question.base)
    try:
        agent = agent_of(question.entry, base)
        redact = _redactor(question, base)
    except Exception as error:  # whatever a user's module raises when it is imported
        return Answer(error=Told.of(error))
    given = None if question.golden is None else [GoldenAnswer(*each) for each in question.golden.items()]
    answers = None if given is None else Lenient(question.recording, given)
    fields = _Values(question.reads).fields
    try:
        done = replayed(agent, question.recording, fields=fields, redact=redact, answers=answers, is_confined=True)
    except Departure as departure:
        return Answer(left=Left.of(departure))
    except Exception as error:
        return Answer(error=Told.of(error))
    return Answer(now=done.now, unused=done.unused, escapes=tuple(done.escapes))


def _redactor(question: Question, base: Path) -> Redact | None:
    redact: Redact | None = None
    if question.redactor:
        redact = agent_of(question.redactor, base, "redactor")
    elif question.redact:
        redact = pickle.loads(question.redact)
    key = question.key
    return None if redact is None else for_run(redact, fresh_key if key is None else lambda: key)


class _Values:
    """What was read, looked up before the process was confined."""

    def __init__(self, reads: list[Read]) -> None:
        self._reads = {_key(each.entity, each.answer): each for each in reads}

    def fields(self, entity: str, answer: Plain) -> Mapping[str, Any]:
        """The values behind a recorded read, or the error that looking them up gave."""
        read = self._reads.get(_key(entity, answer))
        if read is None:
            raise NotAnswerable(f"{entity}: this read is not in the recording")
        if read.error is not None:
            raise read.error.error()
        return read.fields or {}


def _key(entity: str, answer: Plain) -> bytes:
    return msgspec.json.encode([entity, answer], order="sorted")


def main() -> None:
    """See the module."""
    question, answer, trace = (int(each) for each in sys.argv[1:])
    asked = msgspec.json.decode(_whole(question), type=Question)
    os.close(question)
    said = msgspec.json.encode(answer_to(asked, trace))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with os.fdopen(answer, "wb") as file:
        file.write(said)
    os._exit(0)


def _whole(descriptor: int) -> bytes:
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(0)
        return file.read()


if __name__ == "__main__":
    main()
