"""Child processes that work for their parent by lines of JSON: both ends of the protocol.

1. The parent makes a temporary folder, and starts a module in an interpreter of its own (child_process.py).
2. It sends a first line, the setup, and then requests, on the child's standard input.
3. The child takes over its standard streams for the protocol, so that a user's reducer reads and prints elsewhere. It
   sends answers on its standard output. An answer {"failed": reason} is its last one.
4. The child leaves an interrupt from the keyboard to the parent. When its input ends, the parent is done or gone: the
   child removes the folder and ends at once, whatever is in progress.
5. The parent kills the child at the end, and waits for it.

What the setup, the requests and the answers hold is up to the callers: rebuild/processes.py and verify/processes.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from threading import Thread
from typing import IO, Any

from refold.avro.errors import RefoldError, StorageError
from refold.streams import child_process, runtime

PROCESSES_MAX = 8
_READ_BYTES = 65_536

Tree = Mapping[str, Any]
Send = Callable[[Mapping[str, object]], None]
"""Sends an answer to the parent."""
NextRequest = Callable[[], Any]
"""Waits for the parent's next request, and returns it."""


def processes_for(jobs: int, parallel: bool | None, *, is_worth: bool) -> int:
    """Return how many child processes to start for some jobs.

    Args:
        jobs: The number of jobs that can be done at the same time.
        parallel: True to start at least one, False to start none, None to start several if `is_worth`.
        is_worth: Whether the jobs take longer than starting processes for them.

    Returns:
        The number of child processes; 0 if this process works alone.
    """
    if parallel is False or not child_process.can_start():
        return 0
    processes = min(runtime.cores(), jobs, PROCESSES_MAX)
    if parallel:
        return max(processes, min(jobs, 1))
    return processes if processes > 1 and is_worth else 0


class JobProcess:
    """The parent's end: one child process.

    Args:
        module: The child's module; it calls `serve`.
        setup: Its first line; `folder` is added.
        folder: The temporary folder of all children of this parent.
        ending: Its end kills the child.
        pass_fds: Descriptors that the child inherits, under the same numbers.

    Raises:
        OSError: No process can be started.
    """

    def __init__(
        self, module: str, setup: Mapping[str, object], folder: str, ending: ExitStack, pass_fds: Sequence[int] = ()
    ) -> None:
        self._unread = b""
        self._errors = ending.enter_context(tempfile.TemporaryFile(dir=folder))  # noqa: SIM115  # `ending` does
        self._process = child_process.start(
            module, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, pass_fds=pass_fds,
            TMPDIR=folder,
        )  # fmt: skip
        ending.callback(self.end)
        self.send({**setup, "folder": folder})

    @property
    def out(self) -> int:
        """The file descriptor of its output."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def send(self, tree: Mapping[str, object]) -> None:
        """Send a request."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # reading its output will report that it is gone
            self._process.stdin.write(json.dumps(tree).encode() + b"\n")

    def receive(self) -> list[Tree]:
        """Wait for output of the child.

        Returns:
            The answers that are complete by now.

        Raises:
            StorageError: The child failed or ended, with its reason.
        """
        data = os.read(self.out, _READ_BYTES)
        if not data:
            raise StorageError(self._why_it_ended())
        *lines, self._unread = (self._unread + data).split(b"\n")
        answers: list[Tree] = [json.loads(line) for line in lines]
        for answer in answers:
            if "failed" in answer:
                raise StorageError(answer["failed"])
        return answers

    def _why_it_ended(self) -> str:
        how = f"the process for it {child_process.how_it_ended(self._process)}"
        if self._process.returncode is None or self._process.returncode < 0:
            return how
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip().rpartition("\n")[2]
        return f"{how}: {last or 'no output'}"

    def end(self) -> None:
        """Kill it, and wait until it is gone. Idempotent."""
        self._process.kill()
        self._process.wait()
        for each in (self._process.stdin, self._process.stdout):
            if each is not None:
                each.close()


def serve(work: Callable[[Tree, NextRequest, Send], None]) -> None:
    """The child's end: work until the parent is done.

    Args:
        work: Gets the setup, a function that waits for the next request, and one that sends an answer. If it raises a
            RefoldError, the parent gets it. If it returns, the process waits for its end.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, answers = _own_streams()

    def send(tree: Mapping[str, object]) -> None:
        answers.write(json.dumps(tree).encode() + b"\n")

    lines: queue.SimpleQueue[Any] = queue.SimpleQueue()
    setup = json.loads(requests.readline())
    Thread(target=_read_requests, args=(requests, lines, setup["folder"]), daemon=True).start()
    try:
        work(setup, lines.get, send)
    except RefoldError as error:
        send({"failed": str(error)})
    while True:
        signal.pause()  # the other thread ends this process


def _own_streams() -> tuple[IO[bytes], IO[bytes]]:
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    return requests, answers


def _read_requests(requests: IO[bytes], lines: queue.SimpleQueue[Any], folder: str) -> None:
    for line in requests:
        lines.put(json.loads(line))
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)
