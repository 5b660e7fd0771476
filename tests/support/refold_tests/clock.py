"""A clock that tests set. It is stored in a file, so other processes can use it too."""

from __future__ import annotations

import os
from pathlib import Path

BEGIN_MS = 1_700_000_000_000


class FileClock:
    """A clock that returns the milliseconds since 1970 in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            self.set(BEGIN_MS)

    def set(self, now_ms: int) -> None:
        """Set the time."""
        # The file is replaced by a rename, so readers see either the old or the new time.
        other = self.path.with_suffix(f".{os.getpid()}")
        other.write_text(str(now_ms))
        other.replace(self.path)

    def __call__(self) -> int:
        return int(self.path.read_text())
