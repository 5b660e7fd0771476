"""Start a confined process: it gets one question, and its output is read when it has ended.

Question, answer and the stack of a denied operation are files in memory, whose descriptors the process inherits. An
answer is lines of JSON: the last one is a ChildReply, those before are a fork's actions (agents/confined/journal.py).
The process may write files in a folder within a temporary folder, which is removed when it has ended. The next start
removes what killed processes left (streams/temporary.py). The process also inherits that folder's lock, which it cannot
otherwise reach, and no other descriptor.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from refold.agents.confined.protocol import ChildReply, Question
from refold.agents.replay.watch import LIBRARIES, NetworkDenied
from refold.avro.errors import InputError, NotConfinable
from refold.streams import child_process
from refold.streams.temporary import TemporaryFolder

FOLDER = "refold-confined-"
_WHAT = "open a socket, start a process or reach into one, past Python"
_LINE = re.compile(r'^  File "(.+)", line (\d+) in (.+)$')
_FOLDERS = (str(Path(__file__).parent), str(Path(__file__).resolve().parent))


class ProcessEnd(NamedTuple):
    """How a confined process ended.

    Attributes:
        lines: Its output before its answer.
        answer: Its answer; None if it gave none.
        denied: The operation for which the kernel ended it; None if it did not.
        status: Its exit status, as subprocess reports it.
    """

    lines: tuple[bytes, ...]
    answer: ChildReply | None
    denied: NetworkDenied | None
    status: int


def ended(question: Question) -> ProcessEnd:
    """Start a confined process with a question, and wait for its end.

    Raises:
        NotConfinable: The kernel refuses to confine the process; no user code was run.
    """
    if sys.platform != "linux":
        raise not_confinable(f"it needs Linux; this is {sys.platform}")
    with (
        _folder() as (folder, lock),
        _memory("question") as asked, _memory("answer") as said, _memory("trace") as trace,
    ):  # fmt: skip
        question = msgspec.structs.replace(question, folder=folder)
        with os.fdopen(os.dup(asked), "wb") as file:
            file.write(msgspec.json.encode(question))
        process = child_process.start(
            "refold.agents.confined.child", asked, said, trace, stdout=2, pass_fds=[asked, said, trace, lock],
            TMPDIR=folder,
        )  # fmt: skip
        try:
            status = process.wait()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        *lines, _ = whole(said).split(b"\n")
        denied = denied_by_kernel(whole(trace)) if status == -signal.SIGSYS else None
    answer = msgspec.json.decode(lines.pop(), type=ChildReply) if status == 0 and lines else None
    if answer is not None and answer.refused:
        raise not_confinable(answer.refused)
    return ProcessEnd(tuple(lines), answer, denied, status)


def without_answer(found: ProcessEnd, run: str) -> InputError:
    """Return the error for a process that ended without an answer."""
    how = child_process.ending(found.status)
    return InputError(f"the confined process of run {run} {how}, before it had an answer")


def not_confinable(why: str) -> NotConfinable:
    """Return the error for a kernel that refuses to confine.

    Args:
        why: The reason.
    """
    return NotConfinable(
        f"the code cannot be confined here: {why}. Nothing was run; without --confined (confined=True) the guard in "
        "Python holds a replay (docs/REPLAY.md)"
    )


def denied_by_kernel(trace: bytes) -> NetworkDenied:
    """Return the error for a process that SIGSYS ended.

    Args:
        trace: The stacks that it left.
    """
    return NetworkDenied(_WHAT, _site(trace.decode(errors="replace")))


def _site(trace: str) -> str:
    """Return the innermost line of the user's code in the thread that the kernel stopped."""
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
def _folder() -> Iterator[tuple[str, int]]:
    """Yield the folder in which the process may write files, and the descriptor of the lock that protects it."""
    folder = TemporaryFolder(FOLDER)
    try:
        files = Path(folder.path, "files")
        files.mkdir()
        yield str(files), folder.descriptor
    finally:
        folder.remove()


@contextmanager
def _memory(name: str) -> Iterator[int]:
    descriptor = os.memfd_create(f"refold-{name}")
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def whole(descriptor: int) -> bytes:
    """Return the whole content of a descriptor's file."""
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(0)
        return file.read()
