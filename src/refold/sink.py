"""The public interface for writing a sink: a store that is kept up to date with a log, at an exact cut.

from refold.sink import Sink, keep_up

docs/SINKS.md explains the protocol, and docs/examples/sqlite_sink.py is a complete sink.
"""

from __future__ import annotations

from refold.avro.jsonform import formatter
from refold.sinks.port import Batch, EntityState, HistoryStep, Load, Sink, SinkBusy, SinkRefused, SnapshotSink
from refold.sinks.registry import open_sink
from refold.sinks.run import SinkReport, SinkWatch, keep_snapshots, keep_up
from refold.sinks.states import packed
from refold.streams.changes import Row
from refold.streams.cut import Cut, parse_cut

__all__ = [
    "Batch",
    "Cut",
    "EntityState",
    "HistoryStep",
    "Load",
    "Row",
    "Sink",
    "SinkBusy",
    "SinkRefused",
    "SinkReport",
    "SinkWatch",
    "SnapshotSink",
    "formatter",
    "keep_snapshots",
    "keep_up",
    "open_sink",
    "packed",
    "parse_cut",
]
