"""The output of an agent in two files of a bounded size, and reading it as it grows.

`output.log` has the newest bytes. When it is full it becomes `output.log.1`, and the one before is removed. So at least
the newest `bytes_max` bytes are kept, and at most twice as many.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

NAME, OLDER = "output.log", "output.log.1"
_PIECE = 1 << 16


class OutputFile:
    """Writes the output of an agent. For one process at a time."""

    def __init__(self, folder: Path, bytes_max: int) -> None:
        """Continue the files in a folder.

        Args:
            folder: The folder.
            bytes_max: The size of each of the two files at most, bytes.
        """
        self._path = folder / NAME
        self._older = folder / OLDER
        self._bytes_max = bytes_max
        self._file = -1
        self._size = 0
        self._open()

    def write(self, data: bytes) -> None:
        """Write output, unbuffered. What cannot be written is dropped: a full disk must not stop the agent."""
        with suppress(OSError):
            while data:
                if self._size >= self._bytes_max:
                    self._rotate()
                count = os.write(self._file, data[: self._bytes_max - self._size])
                self._size += count
                data = data[count:]

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._file).st_size

    def _rotate(self) -> None:
        self._path.replace(self._older)
        os.close(self._file)
        self._open()


def output(folder: Path, lines: int | None = None) -> tuple[bytes, OutputPosition]:
    """Return the kept output of an agent, and the position after it.

    Args:
        folder: The folder of its files.
        lines: Only the last so many lines.
    """
    position = OutputPosition(folder)
    data = b""
    with suppress(FileNotFoundError):
        data = (folder / OLDER).read_bytes()
    data += position.read()
    if lines is not None:
        data = b"".join(data.splitlines(keepends=True)[-lines:] if lines else [])
    return data, position


class OutputPosition:
    """A position in an agent's output, from which reading continues."""

    def __init__(self, folder: Path) -> None:
        """Begin at the first byte of the newest file."""
        self._path = folder / NAME
        self._file: int | None = None

    def read(self) -> bytes:
        """Return what was written since the last read. Output that was rotated away twice meanwhile is left out."""
        data = self._read_rest()
        while self._is_replaced():
            data += self._read_rest()  # written between the last read and the rotation
            if self._file is not None:
                os.close(self._file)
                self._file = None
            with suppress(FileNotFoundError):
                self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            data += self._read_rest()
        return data

    def _read_rest(self) -> bytes:
        pieces = []
        while self._file is not None and (piece := os.read(self._file, _PIECE)):
            pieces.append(piece)
        return b"".join(pieces)

    def _is_replaced(self) -> bool:
        """Whether the newest file is another one than the one that is read."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return False
        if self._file is None:
            return True
        own = os.fstat(self._file)
        return (own.st_ino, own.st_dev) != (found.st_ino, found.st_dev)
