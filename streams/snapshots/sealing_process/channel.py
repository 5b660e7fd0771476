"""The channel between a process and its sealing process: a pair of sockets, and shared memory.

Whenever a thread makes a blocking system call, it releases the GIL, and if another thread folds it gets the GIL back
about 5 ms later. So a message is sent by one call and received by one call.
1. A message is pickled: both run the same code, for the same user.
2. A short one is sent through the socket, after its length. A long one is put into the shared memory, and only its
   length is sent through the socket, because a socket would transfer it in pieces.
3. The sides take turns, so the memory is free whenever a message is sent. Messages without an answer are short.

The messages between the sealing process (child.py) and its parent (sealer.py). Every request costs time, so predictable
answers are sent in advance.
1. The child receives (log id, partitions, its `SnapshotSettings`).
2. For each epoch it receives a `Begin`. Until the epoch is sealed it sends requests: (name, arguments, left, used_s),
   which call the store or the view. The answer is (True, the result), or (False, a `RemoteError`) for an error.
3. A result with many rows is requested by ("rows", (number, name, arguments)) with a number that the child chooses, and
   continued by ("more", (number,)). The answer to both is (rows, whether they were the last). `left` has the numbers of
   results that are no longer needed, `used_s` the processor time of the child.
4. At the end it sends DONE with the arguments of `SealingRequests.done`, or FAILED with a `RemoteError`: one that it
   received, or one of its own, with number 0.
5. Instead of an answer it may receive a `Begin` of another partition. It seals that epoch first, by steps 2 to 4; then
   it receives the answer, or another `Begin`.
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

Asked: TypeAlias = tuple[str, tuple[Any, ...], list[int], float]
Answer: TypeAlias = tuple[bool, Any]
PredictedAnswers: TypeAlias = dict[str, tuple[tuple[Any, ...], Any]]


class SealRequest(NamedTuple):
    """An epoch to seal.

    Attributes:
        predicted: The answers sent in advance, by name: the arguments and the result.
    """

    epoch_state: EpochState
    predicted: PredictedAnswers


class RemoteError(NamedTuple):
    """An error of the other process.

    Attributes:
        is_storage: Whether it is a StorageError.
        is_damage: Whether it is a CorruptionError, which is a StorageError too.
    """

    number: int
    text: str
    is_storage: bool = False
    is_damage: bool = False


class SealingFailed(Exception):
    """The sealing process failed; the message says why."""


MEMORY_BYTES = 8 << 20
SHORT_BYTES = 32 << 10
_HEAD = struct.Struct(">QB")  # the length, and whether it is in the memory
_TIME = struct.Struct("@ll")  # seconds and microseconds, as the system has them


def shared_memory() -> IO[bytes]:
    """Create MEMORY_BYTES of shared memory for `Channel`. It is freed when no process has it open."""
    found = _in_memory() if sys.platform == "linux" else tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    found.truncate(MEMORY_BYTES)
    return found


def _in_memory() -> IO[bytes]:
    return os.fdopen(os.memfd_create("refold-sealing"), "r+b")


class Channel:
    """One end of the channel.

    Args:
        memory: A file descriptor of `shared_memory`, which may be closed afterwards.
        silent_s: The time after which receiving nothing raises TimeoutError, in whole seconds; 0 for no limit.
    """

    def __init__(self, own: socket.socket, memory: int, silent_s: int = 0) -> None:
        self._socket = own
        self._memory = mmap(memory, MEMORY_BYTES)
        self._received = b""
        # Python's own time limit would be a second call.
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIME.pack(silent_s, 0))

    def send(self, predicted: object) -> None:
        """Send a message.

        Raises:
            OSError: The other side is gone. An error of pickling is raised as it is.
        """
        data = pickle.dumps(predicted, pickle.HIGHEST_PROTOCOL)
        if SHORT_BYTES < len(data) <= MEMORY_BYTES:
            self._memory[: len(data)] = data
            self._socket.sendall(_HEAD.pack(len(data), True))
        else:
            self._socket.sendall(_HEAD.pack(len(data), False) + data)

    def receive(self) -> Any:
        """Receive a message. Raises EOFError or OSError if the other side is gone."""
        self._hear(_HEAD.size)
        length, is_in_memory = _HEAD.unpack_from(self._received)
        self._received = self._received[_HEAD.size :]
        if is_in_memory:
            with memoryview(self._memory) as memory, memory[:length] as part:
                return pickle.loads(part)
        self._hear(length)
        data, self._received = self._received[:length], self._received[length:]
        return pickle.loads(data)

    def _hear(self, length: int) -> None:
        """Receive so many bytes into the buffer."""
        parts, missing = [self._received], length - len(self._received)
        while missing > 0:
            try:
                part = self._socket.recv(max(missing, 2 * SHORT_BYTES))
            except BlockingIOError:
                raise TimeoutError from None
            if not part:
                raise EOFError
            parts.append(part)
            missing -= len(part)
        self._received = b"".join(parts)

    def close(self) -> None:
        """Close the channel; the other side sees the end."""
        self._socket.close()
        self._memory.close()
