"""How far the traces of a log were sent, in a file of the sink's own: a receiver keeps nothing of the kind.

The file is replaced whole and synced, behind what it speaks of: a process that is killed in between sends the last
batch again, under the same ids. Who holds its lock is the one process that sends; another waits for it to end.
It stands beside the sink and not in the log, so that a sink needs no more than to read there.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path

from refold.avro.errors import InputError
from refold.avro.files import read_bounded
from refold.sinks.port import SinkBusy, SinkRefused
from refold.streams.cut import Cut, parse_cut
from refold.streams.durable import replace_file

FORMAT = 1


class PositionFile:
    """The position at a path; folders are made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def read(self) -> Cut | None:
        """The stored cut, None before the first; takes the lock. SinkBusy while another process holds it."""
        self._take()
        try:
            said = json.loads(read_bounded(self.path))
            if said["format"] != FORMAT:
                raise InputError(f"its format is {said['format']!r}, and {FORMAT} is known here")
            return parse_cut(said["cut"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, InputError) as error:
            raise SinkRefused(f"{self.path} holds no position ({error}); remove it, and every run is sent again, under "
                              "the ids it had") from None  # fmt: skip

    def write(self, cut: Cut) -> None:
        """Put a cut, durable on return."""
        try:
            replace_file(self.path, json.dumps({"format": FORMAT, "cut": str(cut)}))
        except OSError as error:
            raise SinkBusy(f"the position cannot be written to {self.path}: {error}", 5.0) from None

    def close(self) -> None:
        """Let go of the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _take(self) -> None:
        if self._lock is not None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path.with_name(f"{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise SinkRefused(f"{self.path}: the position cannot be kept there: {error}; name another place by "
                              "position=PATH in the receiver's URL") from None  # fmt: skip
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise SinkBusy(f"another process sends what {self.path} is the position of") from None
            undo.pop_all()
        self._lock = lock
