"""A data folder's workers: several may share it, each table in one worker's hands; one with standbys has it alone.

Workers in one folder find each other's tables when a partition moves. A standby would hold, in a folder with others,
the table that its partition's next owner waits for.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from refold.avro.errors import InputError, LockedError

NAME = "WORKERS"


@contextmanager
def held(folder: Path, *, alone: bool) -> Iterator[None]:
    """Use a data folder, made where there is none; it is free again when this process ends, however that goes.

    LockedError where it is another's alone, or shared and wanted alone.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise InputError(f"{folder}: no worker can keep its tables here: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError(
                f"{folder}: another worker keeps its tables here, and one with --standby needs a folder to itself; "
                "give each one of its own, with --data"
            ) from None
        yield
    finally:
        os.close(descriptor)
