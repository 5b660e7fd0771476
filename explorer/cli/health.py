"""The examinations behind `refold doctor`; each gives findings and none of them raises."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import refold
from refold.avro.errors import OwnerGone, OwnerSilent, RefoldError, StorageError
from refold.avro.times import millis_text
from refold.explorer.cli.options import Place
from refold.reducers.fold import Fold
from refold.streams.client import Log
from refold.streams.log.file.client import Client
from refold.streams.log.file.layout import FORMAT_NUMBER
from refold.streams.open import file_path, process_surroundings
from refold.streams.point import CLOCK_SLACK_MS

REQUIREMENT = re.compile(r"[A-Za-z0-9._-]+")
FREE_BYTES_MIN = 512 * 1024 * 1024
MIB = 1024 * 1024
DISK_REMEDY = f"free at least {FREE_BYTES_MIN // MIB:,} MiB: rewriting tables takes room for a while"
CLOCK_REMEDY = "set this machine's clock: until it is past the newest record, what is recorded gets that one's time"
REDUCER_REMEDY = "put the module that defines the reducer on PYTHONPATH, as it was when the type was registered"


class Finding(NamedTuple):
    """One thing examined; `remedy` is for what is not ok."""

    subject: str
    ok: bool
    finding: str
    remedy: str = ""


def examine(place: Place) -> list[Finding]:
    """Every finding about a log and this machine."""
    findings = list(_libraries())
    try:
        path = file_path(place.url)
        exists = place.exists()
    except RefoldError as error:
        return [
            *findings,
            Finding("log", False, str(error), "name another place with --log, or install the release it says"),
        ]
    findings += _disk(path if exists else _nearest(path))
    if not exists:
        return [*findings, Finding("log", True, f"{path}: none yet; the first observation makes it")]
    findings.append(Finding("format", True, f"{path}: file format {FORMAT_NUMBER}, which this release reads"))
    findings += _owner(path, place.owner_timeout_s)
    try:
        with place.read() as log:
            for part in (_size, _clock, _types):
                findings += _guarded(part, log)
    except RefoldError as error:
        findings.append(Finding("log", False, str(error), "restore the log from a copy, or import an export of it"))
    return findings


def _guarded(part: Callable[[Log], Iterator[Finding]], log: Log) -> list[Finding]:
    try:
        return list(part(log))
    except RefoldError as error:
        return [Finding("log", False, str(error), "run `refold verify`; restore the log from a copy if it finds more")]


def _libraries() -> Iterator[Finding]:
    yield Finding("refold", True, f"{refold.__version__} on Python {platform.python_version()}, {platform.platform()}")
    try:
        required = importlib.metadata.requires("refold") or []
    except importlib.metadata.PackageNotFoundError:
        return  # it runs from its source, and by now has imported what it needs
    for name in sorted(found[0] for each in required if "extra" not in each and (found := REQUIREMENT.match(each))):
        try:
            yield Finding(name, True, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name, False, "not installed", "install refold again: pip install --force-reinstall refold")


def _nearest(path: Path) -> Path:
    """The folder the log would be made in."""
    absolute = path.absolute()
    return next(each for each in (absolute, *absolute.parents) if each.exists())


def _disk(path: Path) -> Iterator[Finding]:
    is_writable = os.access(path, os.W_OK | os.X_OK)
    yield Finding(
        "folder",
        is_writable,
        f"{path}: {'' if is_writable else 'not '}writable by this user",
        "give this user the right to write there, or run refold as the folder's owner",
    )
    free = shutil.disk_usage(path).free
    yield Finding("disk", free >= FREE_BYTES_MIN, f"{free // MIB:,} MiB free", DISK_REMEDY)


def _owner(path: Path, timeout_s: float) -> Iterator[Finding]:
    try:
        with Client(path, timeout_s) as owner:
            owner.call("flush", None)
    except OwnerGone:
        yield Finding("owner", True, "no process owns the log; the next one that writes will")
    except OwnerSilent as error:
        yield Finding(
            "owner",
            False,
            str(error),
            "continue that process (kill -CONT) or end it; reading goes on meanwhile",
        )
    except StorageError as error:
        yield Finding(
            "owner",
            False,
            str(error),
            "end the process that owns the log; the next one that writes takes over",
        )
    else:
        yield Finding("owner", True, "a process owns the log, and answers")


def _size(log: Log) -> Iterator[Finding]:
    records = sum(log.port.ends().values())
    yield Finding("records", True, f"{records:,} in {log.port.partitions} partitions, log id {log.port.log_id.hex()}")


def _clock(log: Log) -> Iterator[Finding]:
    last = [
        record.recorded_at
        for partition, end in log.port.ends().items()
        if end and (record := log.port.record_at(partition, end - 1)) is not None
    ]
    if not last:
        return
    now = process_surroundings().now_micros() // 1000
    is_right = max(last) <= now + CLOCK_SLACK_MS
    found = f"this machine's clock says {millis_text(now)}, the newest record {millis_text(max(last))}"
    yield Finding("clock", is_right, found, CLOCK_REMEDY)


def _types(log: Log) -> Iterator[Finding]:
    for name in sorted({version.definition.name for version in log.port.registry}):
        version = log.port.registry.newest(name)
        custom = ", ".join(str(field.code["name"]) for field in version.definition.fields.values() if field.code)
        try:
            Fold(version.definition)
        except RefoldError as error:
            yield Finding(f"type {name}", False, str(error), REDUCER_REMEDY)
        else:
            if custom:
                yield Finding(f"type {name}", True, f"its custom reducers can be imported: {custom}")
