"""Compares the model with a log that its constants were not computed from."""

from __future__ import annotations

from typing import NamedTuple

from refold.explorer.capacity.measured import Measured, MeasuredLog
from refold.explorer.capacity.model import rebuild_s, table_bytes

LIMIT = 0.2
"""The greatest deviation of the model from a measured log, as a share of what was measured."""


class Predicted(NamedTuple):
    """A figure of a log, as it was measured and as the model predicts it."""

    name: str
    measured: float
    predicted: float

    @property
    def deviation(self) -> float:
        """The share by which the model predicts more."""
        return self.predicted / self.measured - 1


def predictions(point: MeasuredLog, constants: Measured) -> list[Predicted]:
    """Return every figure of a log."""
    stored = point.entities_read * constants.chunk_bytes
    found = [
        ("worker: observations a second", point.rate, constants.thread_rate),
        ("worker: CPU, us an observation", point.cpu_us, constants.cpu_us),
        ("worker: memory, MB", point.memory / 1e6, constants.memory_bytes / 1e6),
        ("worker: table, MB", point.table / 1e6, table_bytes(point.records, point.entities, constants) / 1e6),
        (".observations, MB", point.observations / 1e6, point.records * constants.observation_bytes / 1e6),
        (".changes, MB", point.changes / 1e6, point.records * constants.change_bytes / 1e6),
        ("snapshots that a rebuild reads, MB", point.ranges / 1e6, stored / 1e6),
        ("rebuild, s of CPU", point.rebuild_s, rebuild_s(point.entities_read, point.replayed, constants)),
        ("rebuild --full, s of CPU", point.replay_s, rebuild_s(0, point.records, constants)),
    ]
    return [Predicted(*each) for each in found]
