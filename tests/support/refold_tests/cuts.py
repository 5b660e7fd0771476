"""Cuts of a log, for setting markers through its port."""

from __future__ import annotations

from dataclasses import replace

from refold.streams.log.port import LogPort
from refold.streams.point import Points


def cut_text(log: LogPort, number: int = 0) -> str:
    """Return the text of a cut at the log's end. Each number gives a different text."""
    return str(replace(Points(log, 0).end(), observed_until=number))
