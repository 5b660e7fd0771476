"""A capture in this process, into its own log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from refold.agents.capture.capture import Capture, CaptureSettings
from refold.agents.capture.spool_drain import StoredExchanges
from refold.agents.log import AgentLog, open_log

CLOSING_S = 120.0


@dataclass
class Captured:
    """A capture in progress. said: the lines it printed for its user; stored: the result, after it was closed."""

    capture: Capture
    said: list[str] = field(default_factory=list)
    stored: StoredExchanges | None = None

    @property
    def url(self) -> str:
        """The URL of the proxy."""
        return self.capture.url

    def close(self) -> StoredExchanges:
        """End the capture. Everything is in the log on return."""
        if self.stored is None:
            self.stored = self.capture.close(CLOSING_S)
        return self.stored


@contextmanager
def capturing(folder: Path, upstream: str | Mapping[str, str], **given: Any) -> Iterator[Captured]:
    """Capture into FOLDER/log, with the spool FOLDER/spool."""
    settings, said = captured_by(folder, **given)
    captured = Captured(Capture(settings, {"": upstream} if isinstance(upstream, str) else upstream), said)
    try:
        yield captured
    finally:
        captured.close()


def captured_by(folder: Path, **given: Any) -> tuple[CaptureSettings, list[str]]:
    """Return the settings of such a capture, and the lines that it will print."""
    url = f"file:{folder / 'log'}"
    said: list[str] = []
    settings = CaptureSettings(
        url, lambda: open_log(url, owner_timeout_s=0.2), "agent", {}, said.append, spool=folder / "spool", **given
    )
    return settings, said


def log_of(folder: Path) -> AgentLog:
    """Open the log of a closed capture."""
    return open_log(f"file:{folder / 'log'}", read_only=True)
