"""Findings of `refold doctor` about any log: its contents, times and types, and room on a disk."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from refold.avro.errors import Denied, RefoldError
from refold.avro.registry import TypeVersion
from refold.avro.times import millis_text
from refold.explorer.queries.log_target import LogTarget
from refold.reducers.fold import Fold
from refold.streams.client import Log
from refold.streams.held_types import problem_of
from refold.streams.log.port import Foreign, SetAside
from refold.streams.point import CLOCK_SLACK_MS

FREE_BYTES_MIN = 512 * 1024 * 1024
MIB = 1024 * 1024
CLOCK_REMEDY = "set this machine's clock: until it passes the newest record, new records get that record's time"
FOREIGN_REMEDY = "if their writer should not write there, remove its right; refold acl shows who needs it"
# In topics that are read on demand, doctor reads so many of each partition's last offsets; verify reads all.
LOOKED_THROUGH = 10_000
REDUCER_REMEDY = (
    "if the code is yours, register it as it was when the type was registered, with --reducers or REFOLD_REDUCERS; "
    "else leave it: the type is held, and the others are folded"
)

PENDING_REMEDY = (
    "start a worker with this code. If one runs, it lacks the right to activate it, or the version may not follow "
    "the version in effect: see refold acl check --role worker, and the worker's log"
)


class Finding(NamedTuple):
    """The result of one check. `remedy` is for a finding that is not ok."""

    subject: str
    ok: bool
    finding: str
    remedy: str = ""


Part = Callable[[Log], Iterator[Finding]]
"""A check of an open log."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """Settings of the checks on Kafka, and their clock.

    Attributes:
        roles: The roles whose rights this user should have.
        keys: Whether the rights include those to the key ring's topic.
        data: A worker's folder.
    """

    roles: tuple[str, ...] = ()
    keys: bool = False
    data: Path | None = None
    now_ms: Callable[[], int] = _now_ms


def nearest(path: Path) -> Path:
    """Return the nearest existing folder, in which something would be created."""
    absolute = path.absolute()
    return next(each for each in (absolute, *absolute.parents) if each.exists())


def disk(path: Path, needed_bytes: int = 0, *, is_log: bool = False) -> Iterator[Finding]:
    """Check whether a folder is writable and has room.

    Args:
        path: The folder.
        needed_bytes: The room for what will be written, in bytes. At least FREE_BYTES_MIN must be free in any case.
        is_log: Whether it is the folder of an existing log. Reading it needs no right to write, so a missing right is
            no problem.
    """
    is_writable = os.access(path, os.W_OK | os.X_OK)
    found = f"{path}: {'' if is_writable else 'not '}writable by this user"
    if is_log and not is_writable:
        yield Finding("folder", True, f"{found}: commands that read work here, commands that write do not")
        return
    yield Finding(
        "folder", is_writable, found, "give this user the right to write there, or run refold as the folder's owner"
    )
    free, needed = shutil.disk_usage(path).free, max(needed_bytes, FREE_BYTES_MIN)
    remedy = f"free at least {needed // MIB:,} MiB: rewriting tables takes room for a while"
    yield Finding("disk", free >= needed, f"{path}: {free // MIB:,} MiB free", remedy)


def inside(
    target: LogTarget, looking: CheckSettings, remedy: str, clock_remedy: str = CLOCK_REMEDY, more: Sequence[Part] = ()
) -> list[Finding]:
    """Check an open log.

    Args:
        target: The log.
        looking: The settings of the checks, and their clock.
        remedy: The remedy for a log that cannot be opened.
        clock_remedy: The remedy for a clock that is behind the newest record.
        more: Further checks.
    """
    findings: list[Finding] = []
    try:
        with target.read() as log:
            for part in (
                size,
                lambda log: clock(log, looking, clock_remedy),
                types,
                foreign,
                set_aside,
                passed_over,
                *more,
            ):
                findings += _findings_or_problem(part, log)
    except RefoldError as error:
        findings.append(Finding("log", False, str(error), remedy))
    return findings


def _findings_or_problem(part: Part, log: Log) -> list[Finding]:
    try:
        return list(part(log))
    except Denied:  # for example a producer; `--role` checks its rights
        return [Finding("log", True, "not checked further: this user may not read it")]
    except RefoldError as error:
        return [Finding("log", False, str(error), "run `refold verify`; restore the log from a copy if it finds more")]


def size(log: Log) -> Iterator[Finding]:
    """Report how many records there are."""
    records = sum(log.port.ends().values())
    yield Finding("records", True, f"{records:,} in {log.port.partitions} partitions, log id {log.port.log_id.hex()}")


def clock(log: Log, looking: CheckSettings, remedy: str) -> Iterator[Finding]:
    """Compare this machine's clock with the newest record's time."""
    last = max(log.port.recorded_below(partition, end) for partition, end in log.port.ends().items())
    if not last:
        return
    now = looking.now_ms()
    is_right = last <= now + CLOCK_SLACK_MS
    found = f"this machine's clock says {millis_text(now)}, the newest record {millis_text(last)}"
    yield Finding("clock", is_right, found, remedy)


def foreign(log: Log) -> Iterator[Finding]:
    """Report records in the log's topics that refold did not write. They are no problem: readers skip them."""
    for each in log.port.foreign(last=LOOKED_THROUGH):
        yield Finding(f"foreign in {each.topic}", True, f"{foreign_text(each)}; {FOREIGN_REMEDY}")


def set_aside(log: Log) -> Iterator[Finding]:
    """Report damaged records that an administrator set aside. They are no problem: they hold nothing."""
    for each in log.port.set_aside():
        yield Finding(f"set aside in {each.topic}", True, f"{set_aside_text(each)}; refold quarantine list shows each")


def passed_over(log: Log) -> Iterator[Finding]:
    """Report records in batches that cannot be read. Readers skip them, but the brokers' disks should be checked."""
    for each in log.port.passed_over():
        remedy = "check the brokers' disks; restore their data if you can"
        yield Finding(f"damaged in {each.topic}", False, passed_over_text(each), remedy)


def passed_over_text(each: SetAside) -> str:
    """Say how many records of a topic cannot be read and are skipped, and where the first one is."""
    counted = f"{each.records:,} {'record' if each.records == 1 else 'records'} in batches that cannot be read"
    return f"{each.topic}: {counted}, the first at {each.first}; every reader passes over them"


def set_aside_text(each: SetAside) -> str:
    """Say how many records of a topic are set aside, and where the first one is."""
    counted = f"{each.records:,} damaged {'record' if each.records == 1 else 'records'} set aside"
    return f"{each.topic}: {counted}, the first at {each.first}; every reader passes over them"


def foreign_text(each: Foreign) -> str:
    """Say how many records of a topic refold did not write, and where the first one is."""
    counted = f"{each.records:,} {'record' if each.records == 1 else 'records'} not written by refold"
    return f"{each.topic}: {counted}, the first at {each.first}; every reader passes over them"


def types(log: Log) -> Iterator[Finding]:
    """Check whether each type can be folded here."""
    for name in sorted(log.port.registry.fingerprints()):
        version = log.port.registry.newest(name)
        custom = ", ".join(str(field.code["name"]) for field in version.definition.fields.values() if field.code)
        try:
            Fold(version.definition)
        except RefoldError as error:
            yield Finding(f"type {name}", False, str(error), REDUCER_REMEDY)
        else:
            if custom:
                yield Finding(f"type {name}", True, f"its custom reducers are registered: {custom}")
    for version in log.port.registry.pending():
        yield _pending_finding(version)


def _pending_finding(version: TypeVersion) -> Finding:
    """Report a version that waits for a worker with its code: a problem if that code is registered here."""
    subject = f"type {version.definition.name}, version at 0={version.offset}"
    problem = problem_of(version)
    if problem is not None:
        return Finding(subject, True, f"pending, so readers skip it: {problem}")
    return Finding(subject, False, "pending, though its code is registered here", PENDING_REMEDY)
