"""Syncs files and folders to the device."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any


def sync_file(file: IO[Any]) -> None:
    """Sync an open file to the device. Raises OSError."""
    file.flush()
    os.fsync(file.fileno())


def sync_path(path: Path) -> None:
    """Sync a closed file, or a folder's entries (created, renamed and removed ones), to the device. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_file(path: Path, text: str) -> None:
    """Replace a small file atomically: after a kill the old or the new one exists, and perhaps a file NAME.PID.new.
    Raises OSError.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.new")
    with unfinished.open("w", encoding="utf-8") as file:
        file.write(text)
        sync_file(file)
    unfinished.replace(path)
    sync_path(path.parent)
