"""What a log takes from the process that opens it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from refold.streams.log.file.limits import DEFAULT_LIMITS, FileLogLimits
from refold.streams.snapshots.settings import DEFAULT_SETTINGS, SnapshotSettings


@dataclass(frozen=True, slots=True)
class RuntimeContext:
    """A log's environment: a clock in microseconds since 1970, a generator of ids, and the name of this process.

    Attributes:
        snapshots: When and how epochs are sealed if this process owns a `file:` log.
        file_limits: The limits of a `file:` log.
    """

    now_micros: Callable[[], int]
    new_id: Callable[[], str]
    agent: str
    snapshots: SnapshotSettings = DEFAULT_SETTINGS
    file_limits: FileLogLimits = DEFAULT_LIMITS
