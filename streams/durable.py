"""What is on the device when the call returns: an open file, a closed one, a folder's names, a small file replaced."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any


def sync_file(file: IO[Any]) -> None:
    """Have what was written to an open file on the device. OSError."""
    file.flush()
    os.fsync(file.fileno())


def sync_path(path: Path) -> None:
    """Have a closed file, or a folder's names, on the device: those made, renamed and removed in it. OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_file(path: Path, text: str) -> None:
    """Put a small file in place of what was there: a kill leaves the one or the other, and perhaps a NAME.PID.new
    beside it. OSError."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        sync_file(file)
    beside.replace(path)
    sync_path(path.parent)
