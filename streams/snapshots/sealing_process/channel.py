"""How a process and the one that seals for it hear each other: a pair of sockets, and a piece of memory of both.

Whenever a thread waits for the system, Python's lock goes to another thread, and where that one folds it comes back
some 5 ms later. So a message is sent by one call and received by one call.
1. A message is pickled: both run the same code, for the same user.
2. A short one goes through the socket, after its length. A long one is put into the memory, and its length alone goes
   through the socket: a socket takes it only in pieces.
3. One side speaks and then hears the other, so the memory is free again whenever something is to be said. What is said
   without an answer is short.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
import sys
import tempfile
from mmap import mmap
from typing import IO, Any

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
