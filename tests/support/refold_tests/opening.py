"""Logs in a folder, with a clock that tests set, and ids that are the same in each test run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path

from refold.avro.definition import TypeDefinition
from refold.avro.ids import identify
from refold.avro.observation import Observation
from refold.streams.client import Log
from refold.streams.log.file.limits import DEFAULT_LIMITS, FileLogLimits
from refold.streams.log.file.log import FileLog
from refold.streams.runtime_context import RuntimeContext
from refold.streams.snapshots.settings import DEFAULT_SETTINGS, SnapshotSettings
from refold_tests.clock import FileClock
from refold_tests.sample_types import OTHER, THING

PARTITIONS = 2


def open_log(
    path: Path,
    *,
    partitions: int | None = None,
    types: Sequence[TypeDefinition] = (THING, OTHER),
    read_only: bool = False,
    settings: SnapshotSettings = DEFAULT_SETTINGS,
    limits: FileLogLimits = DEFAULT_LIMITS,
) -> Log:
    """Open the log at `path`/log with the clock at `path`/clock. A new log has PARTITIONS partitions by default."""
    clock = FileClock(path / "clock")
    number = count()
    made = (path / "log" / "FORMAT").exists()
    port = FileLog(
        path / "log",
        clock_ms=clock,
        new_id=f"{path.name:16.16}".encode,
        partitions=partitions if partitions or made else PARTITIONS,
        read_only=read_only,
        settings=settings,
        limits=limits,
    )
    runtime = RuntimeContext(lambda: clock() * 1000, lambda: f"run-{next(number)}", "tests", settings, limits)
    return Log(port, {each.name: each for each in types}, set(), runtime)


def take(log: Log, observations: Sequence[Observation], definition: TypeDefinition = THING) -> None:
    """Record observations unchanged, durable on return. Observations of OTHER's type use OTHER."""
    for each in observations:
        log.append(each, identify(each), OTHER if each.type == OTHER.name else definition, {})
    log.flush()
