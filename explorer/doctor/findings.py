"""What `refold doctor` says of any log: what stands in it, its times and types, and room on a disk."""

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
CLOCK_REMEDY = "set this machine's clock: until it is past the newest record, what is recorded gets that one's time"
FOREIGN_REMEDY = "if their writer should not write there, take the right away; refold acl says who needs it"
# Of topics that are read on demand, doctor reads so many of each partition's last offsets; verify reads all.
LOOKED_THROUGH = 10_000
REDUCER_REMEDY = (
    "if the code is yours, register it as it was when the type was registered, with --reducers or REFOLD_REDUCERS; "
    "else leave it: the type is held, and the others are folded"
)

PENDING_REMEDY = (
    "start a worker with this code. If one runs, it lacks the right to activate it, or the version may not follow what "
    "is in effect: see refold acl check --role worker, and the worker's log"
)


class Finding(NamedTuple):
    """One thing examined; `remedy` is for what is not ok."""

    subject: str
    ok: bool
    finding: str
    remedy: str = ""


Part = Callable[[Log], Iterator[Finding]]
"""Looks at something in a log that is open."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Looking:
    """What else is looked at on Kafka, and by which clock. roles: what this user should be allowed; keys: with the key
    ring's topic. data: a worker's folder."""

    roles: tuple[str, ...] = ()
    keys: bool = False
    data: Path | None = None
    now_ms: Callable[[], int] = _now_ms


def nearest(path: Path) -> Path:
    """The folder that something would be made in."""
    absolute = path.absolute()
    return next(each for each in (absolute, *absolute.parents) if each.exists())


def disk(path: Path, needed_bytes: int = 0, *, is_log: bool = False) -> Iterator[Finding]:
    """Whether a folder can be written to, and has room; needed_bytes: for what will come.

    is_log: it is the folder of a log that exists. Reading that needs no right to write, so its absence is no problem.
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
    place: LogTarget, looking: Looking, remedy: str, clock_remedy: str = CLOCK_REMEDY, more: Sequence[Part] = ()
) -> list[Finding]:
    """What stands in a log; remedy: where it cannot be opened. more: other things to look at in it."""
    findings: list[Finding] = []
    try:
        with place.read() as log:
            for part in (
                size,
                lambda log: clock(log, looking, clock_remedy),
                types,
                foreign,
                set_aside,
                passed_over,
                *more,
            ):
                findings += _guarded(part, log)
    except RefoldError as error:
        findings.append(Finding("log", False, str(error), remedy))
    return findings


def _guarded(part: Part, log: Log) -> list[Finding]:
    try:
        return list(part(log))
    except Denied:  # a producer, say: what it needs is a question of its rights
        return [Finding("log", True, "not looked at further: this user may not read it")]
    except RefoldError as error:
        return [Finding("log", False, str(error), "run `refold verify`; restore the log from a copy if it finds more")]


def size(log: Log) -> Iterator[Finding]:
    """How much there is."""
    records = sum(log.port.ends().values())
    yield Finding("records", True, f"{records:,} in {log.port.partitions} partitions, log id {log.port.log_id.hex()}")


def clock(log: Log, looking: Looking, remedy: str) -> Iterator[Finding]:
    """This machine's clock beside the newest record's."""
    last = max(log.port.recorded_below(partition, end) for partition, end in log.port.ends().items())
    if not last:
        return
    now = looking.now_ms()
    is_right = last <= now + CLOCK_SLACK_MS
    found = f"this machine's clock says {millis_text(now)}, the newest record {millis_text(last)}"
    yield Finding("clock", is_right, found, remedy)


def foreign(log: Log) -> Iterator[Finding]:
    """Records in the log's topics that refold did not write. No problem of the log: readers pass over them."""
    for each in log.port.foreign(last=LOOKED_THROUGH):
        yield Finding(f"foreign in {each.topic}", True, f"{foreign_text(each)}; {FOREIGN_REMEDY}")


def set_aside(log: Log) -> Iterator[Finding]:
    """Damaged records that an administrator set aside. No problem of the log: they hold nothing."""
    for each in log.port.set_aside():
        yield Finding(f"set aside in {each.topic}", True, f"{set_aside_text(each)}; refold quarantine list shows each")


def passed_over(log: Log) -> Iterator[Finding]:
    """Records in batches that cannot be read. Readers do without: but the brokers' disks should be looked at."""
    for each in log.port.passed_over():
        remedy = "look at the brokers' disks; restore their data if you can"
        yield Finding(f"damaged in {each.topic}", False, passed_over_text(each), remedy)


def passed_over_text(each: SetAside) -> str:
    """How many records of a topic cannot be read and are passed over, and where the first one is."""
    counted = f"{each.records:,} {'record' if each.records == 1 else 'records'} in batches that cannot be read"
    return f"{each.topic}: {counted}, the first at {each.first}; every reader passes over them"


def set_aside_text(each: SetAside) -> str:
    """How many records of a topic are set aside, and where the first one is."""
    counted = f"{each.records:,} damaged {'record' if each.records == 1 else 'records'} set aside"
    return f"{each.topic}: {counted}, the first at {each.first}; every reader passes over them"


def foreign_text(each: Foreign) -> str:
    """How many records of a topic refold did not write, and where the first one is."""
    counted = f"{each.records:,} {'record' if each.records == 1 else 'records'} not written by refold"
    return f"{each.topic}: {counted}, the first at {each.first}; every reader passes over them"


def types(log: Log) -> Iterator[Finding]:
    """Whether each type can be folded here."""
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
        yield _pending(version)


def _pending(version: TypeVersion) -> Finding:
    """A version that waits for a worker with its code: a problem where that code is registered here."""
    subject = f"type {version.definition.name}, version at 0={version.offset}"
    problem = problem_of(version)
    if problem is not None:
        return Finding(subject, True, f"pending, so readers pass over it: {problem}")
    return Finding(subject, False, "pending, though its code is registered here", PENDING_REMEDY)
