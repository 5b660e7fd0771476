"""A capture in this process, into a log of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from refold.agents.capture.capture import Capture, CaptureSettings
from refold.agents.capture.spool_drain import Stored
from refold.agents.log import AgentLog, open_log

CLOSING_S = 120.0


@dataclass
class Captured:
    """One capture under way. said: what it said to its user. stored: what came of it, once it is closed."""

    capture: Capture
    said: list[str] = field(default_factory=list)
    stored: Stored | None = None

    @property
    def url(self) -> str:
        """Of the proxy."""
        return self.capture.url

    def close(self) -> Stored:
        """End it; all is in the log then."""
        if self.stored is None:
            self.stored = self.capture.close(CLOSING_S)
        return self.stored


@contextmanager
def capturing(folder: Path, upstream: str | Mapping[str, str], **given: Any) -> Iterator[Captured]:
    """A capture into FOLDER/log, by way of FOLDER/spool."""
    url = f"file:{folder / 'log'}"
    said: list[str] = []
    settings = CaptureSettings(
        url, lambda: open_log(url, owner_timeout_s=0.2), "agent", {}, said.append, spool=folder / "spool", **given
    )
    captured = Captured(Capture(settings, {"": upstream} if isinstance(upstream, str) else upstream), said)
    try:
        yield captured
    finally:
        captured.close()


def log_of(folder: Path) -> AgentLog:
    """The log of a capture that is closed."""
    return open_log(f"file:{folder / 'log'}", read_only=True)
