"""A replay in a process of its own, which the kernel lets reach nothing (agents/confined/kernel.py).

1. Here, before anything else: the values of everything that the run read are looked up in the log, be it a folder or
   Kafka. The process is given them with the recording, in memory, and no descriptor that leads out.
2. The process confines itself, then imports the agent's code and replays it, under the guard as well.
3. If the kernel refuses to confine it, no code is run: NotConfinable.
4. What the guard sees is denied with its place, as in any replay. What gets past Python ends the process by SIGSYS:
   NetworkDenied here, with the line that Python was at.
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from refold.agents.confined.exchange import Answer, Question, Read, Told
from refold.agents.entry import entry_for
from refold.agents.journal.record import Plain, Recording
from refold.agents.redaction.redactor import Redact, Redactor
from refold.agents.replay.run import Fields, Replayed
from refold.agents.replay.watch import LIBRARIES, NetworkDenied
from refold.avro.errors import InputError, NotConfinable, RefoldError
from refold.streams.interpreter import command, environment

_WHAT = "open a socket or start a process, past Python"
_LINE = re.compile(r'^  File "(.+)", line (\d+) in (.+)$')
_FOLDERS = (str(Path(__file__).parent), str(Path(__file__).resolve().parent))


def replayed_confined(
    entry: str, recording: Recording, *, fields: Fields | None = None, redact: Redact | None = None,
    redactor: str = "", key: bytes | None = None, golden: Mapping[str, Plain] | None = None, base: Path | None = None,
) -> Replayed:  # fmt: skip
    """Run an agent's code, by its name, against a recording, confined; else as `replayed`.

    redactor: a redactor's name, in place of `redact`. key: of the redactor's tokens. golden: the answers of a golden
    trace that is not exact. base: the folder that names are looked up from [this one].
    """
    named, pickled = _shipped(redact)
    here = Path.cwd()
    question = Question(
        recording=recording, entry=entry, base=str(base or here), path=[each or str(here) for each in sys.path],
        reads=list(_reads(recording, fields)), redactor=redactor or named, redact=pickled, key=key,
        golden=None if golden is None else dict(golden),
    )  # fmt: skip
    answer = _asked(question)
    if answer.refused:
        raise NotConfinable(
            f"a replay cannot be confined here: {answer.refused}. Nothing was run; without --confined (confined=True) "
            "the guard in Python holds it (docs/REPLAY.md)"
        )
    if answer.error is not None:
        raise answer.error.error()
    if answer.left is not None:
        raise answer.left.departure(recording.run)
    assert answer.now is not None
    return Replayed(recording, answer.now, answer.unused, answer.escapes)


def _shipped(redact: Redact | None) -> tuple[str, bytes]:
    """A redactor for another process: a function's name, or the object itself."""
    if redact is None:
        return "", b""
    if not isinstance(redact, Redactor):
        return entry_for(redact, "redactor"), b""
    try:
        return "", pickle.dumps(redact)
    except Exception as error:
        raise InputError(
            f"the redactor cannot be handed to the confined process ({error}): give a function of a module that makes "
            "it, or rules that are functions of a module"
        ) from error


def _reads(recording: Recording, fields: Fields | None) -> Iterator[Read]:
    if fields is None:
        return
    for step in recording.steps:
        for attempt in step.attempts:
            for call in attempt.calls:
                if call.asked.kind == "read" and isinstance(call.answer, dict) and "fields" not in call.answer:
                    yield _read(call.asked.name, call.answer, fields)


def _read(entity: str, answer: Plain, fields: Fields) -> Read:
    try:
        return Read(entity, answer, fields=dict(fields(entity, answer)))
    except RefoldError as error:
        return Read(entity, answer, error=Told.of(error))


def _asked(question: Question) -> Answer:
    """The answer of the process. NetworkDenied where the kernel ended it."""
    if sys.platform != "linux":
        return Answer(refused=f"it takes Linux; this is {sys.platform}")
    with _memory("question") as asked, _memory("answer") as said, _memory("trace") as trace:
        with os.fdopen(os.dup(asked), "wb") as file:
            file.write(msgspec.json.encode(question))
        process = subprocess.Popen(
            command("refold.agents.confined.child", str(asked), str(said), str(trace)), env=environment(),
            stdin=subprocess.DEVNULL, stdout=2, pass_fds=[asked, said, trace],
        )  # fmt: skip
        try:
            status = process.wait()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if status == -signal.SIGSYS:
            raise NetworkDenied(_WHAT, _site(_whole(trace).decode(errors="replace")))
        answer = _whole(said)
    if status != 0 or not answer:
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        raise InputError(f"the confined replay of run {question.recording.run} ended {how}, before it had an answer")
    return msgspec.json.decode(answer, type=Answer)


def _site(trace: str) -> str:
    """The innermost line of the user's code in the thread that the kernel stopped."""
    innermost = ""
    _, found, current = trace.partition("Current thread ")
    for line in current.split("\n\n")[0].splitlines() if found else ():
        place = _LINE.match(line)
        if place is None or place[1].startswith((*_FOLDERS, "<")):
            continue
        innermost = innermost or f"{place[1]}:{place[2]} in {place[3]}"
        if not place[1].startswith(LIBRARIES):
            return f"{place[1]}:{place[2]} in {place[3]}"
    return innermost or "a line that Python does not know, in a thread of native code"


@contextmanager
def _memory(name: str) -> Iterator[int]:
    descriptor = os.memfd_create(f"refold-{name}")
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _whole(descriptor: int) -> bytes:
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(0)
        return file.read()
