"""How a process and the one that seals for it hear each other: a pair of sockets, and a piece of memory of both.

Whenever a thread waits for the system, Python's lock goes to another thread, and where that one folds it comes back
some 5 ms later. So a message is sent by one call and received by one call.
1. A message is pickled: both run the same code, for the same user.
2. A short one goes through the socket, after its length. A long one is put into the memory, and its length alone goes
   through the socket: a socket takes it only in pieces.
3. One side speaks and then hears the other, so the memory is free again whenever something is to be said. What is said
   without an answer is short.

The messages between the process that seals (child.py) and the one that it seals for (sealer.py). Every question costs
time, so predictable answers are sent in advance.
1. The child hears (log id, partitions).
2. For each epoch it hears a `Begin`. Until it is done it asks: (name, arguments, left) of what the store or the view
   has. The answer is (True, what that gives), or (False, an `ErrorThere`) for what it raises.
3. What has many rows is begun by ("rows", (number, name, arguments)) with a number of the child's, and gone on with by
   ("more", (number,)); the answer to both is (rows, whether they were the last). `left` are numbers of which no more
   rows are wanted.
4. At the end it says DONE with what `Desk.done` takes, or FAILED with an `ErrorThere`: the one that it was answered
   with, or one of its own, with number 0.
5. Before an answer it may hear a `Begin` of another partition. It seals that epoch first, by 2 to 4; then it hears the
   answer, or one more `Begin`.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
import sys
import tempfile
from mmap import mmap
from typing import IO, Any, NamedTuple, TypeAlias

from refold.streams.snapshots.table import EpochState

DONE, FAILED = "done", "failed"
PART_BYTES = 2 << 20
"""About so much goes at once, of rows asked for and of records appended; less than a channel's memory."""

Asked: TypeAlias = tuple[str, tuple[Any, ...], list[int]]
Answer: TypeAlias = tuple[bool, Any]
Told: TypeAlias = dict[str, tuple[tuple[Any, ...], Any]]


class Begin(NamedTuple):
    """An epoch to seal. told: what will be asked first, by name: the arguments and what they give."""

    standing: EpochState
    told: Told


class ErrorThere(NamedTuple):
    """An error of the other process. is_storage: a StorageError; is_damage: a CorruptionError, which is one too."""

    number: int
    text: str
    is_storage: bool = False
    is_damage: bool = False


class SealingFailed(Exception):
    """The process that seals cannot; the message says why."""


MEMORY_BYTES = 8 << 20
SHORT_BYTES = 32 << 10
_HEAD = struct.Struct(">QB")  # the length, and whether it stands in the memory
_TIME = struct.Struct("@ll")  # seconds and microseconds, as the system has them


def shared_memory() -> IO[bytes]:
    """MEMORY_BYTES of it, for `Channel`; it is gone when nobody has it open any more."""
    found = _in_memory() if sys.platform == "linux" else tempfile.TemporaryFile()  # noqa: SIM115 - whoever asks closes
    found.truncate(MEMORY_BYTES)
    return found


def _in_memory() -> IO[bytes]:
    return os.fdopen(os.memfd_create("refold-sealing"), "r+b")


class Channel:
    """One of its two ends. memory: a number of `shared_memory`, which may be closed then.

    silent_s: hearing nothing for so long (whole seconds) raises TimeoutError; 0 for no limit.
    """

    def __init__(self, own: socket.socket, memory: int, silent_s: int = 0) -> None:
        self._socket = own
        self._memory = mmap(memory, MEMORY_BYTES)
        self._heard = b""
        # Python's own time limit would be a second call.
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIME.pack(silent_s, 0))

    def tell(self, told: object) -> None:
        """Say something; OSError where the other is gone, else whatever keeps it from being pickled."""
        data = pickle.dumps(told, pickle.HIGHEST_PROTOCOL)
        if SHORT_BYTES < len(data) <= MEMORY_BYTES:
            self._memory[: len(data)] = data
            self._socket.sendall(_HEAD.pack(len(data), True))
        else:
            self._socket.sendall(_HEAD.pack(len(data), False) + data)

    def hear(self) -> Any:
        """What the other says; EOFError or OSError where it is gone."""
        self._hear(_HEAD.size)
        length, is_in_memory = _HEAD.unpack_from(self._heard)
        self._heard = self._heard[_HEAD.size :]
        if is_in_memory:
            with memoryview(self._memory) as memory, memory[:length] as part:
                return pickle.loads(part)
        self._hear(length)
        data, self._heard = self._heard[:length], self._heard[length:]
        return pickle.loads(data)

    def _hear(self, length: int) -> None:
        """Have so many bytes at hand."""
        parts, missing = [self._heard], length - len(self._heard)
        while missing > 0:
            try:
                part = self._socket.recv(max(missing, 2 * SHORT_BYTES))
            except BlockingIOError:
                raise TimeoutError from None
            if not part:
                raise EOFError
            parts.append(part)
            missing -= len(part)
        self._heard = b"".join(parts)

    def close(self) -> None:
        """The other hears that it is over."""
        self._socket.close()
        self._memory.close()
