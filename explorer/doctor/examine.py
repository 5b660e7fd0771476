"""Checks whether a log can be used on this machine. Every problem becomes a finding; nothing here raises.

A library is checked for its minimum version, which is the oldest one that refold's tests ran with.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
from collections.abc import Iterator
from pathlib import Path

import refold
from refold.avro.errors import OwnerGone, OwnerSilent, RefoldError, StorageError
from refold.avro.kernel import find_kernel
from refold.explorer.doctor.findings import CheckSettings, Finding, disk, inside, nearest
from refold.explorer.doctor.kafka import on_kafka
from refold.explorer.queries.log_target import LogTarget
from refold.streams.log.file.client import Client
from refold.streams.open import file_path, is_kafka
from refold.streams.rocks.layout import FORMAT_NUMBER
from refold.streams.runtime import allocator

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?>=([0-9.]+)")
# Extras that refold uses at run time; the others are for its developers.
_EXTRAS = ("kafka", "registry")


def examine(target: LogTarget, looking: CheckSettings) -> list[Finding]:
    """Return every finding about a log and this machine."""
    findings = list(libraries(with_kafka=is_kafka(target.url)))
    if is_kafka(target.url):
        return [*findings, *(on_kafka(target, looking) if _has_client() else ())]
    try:
        path = file_path(target.url)
        exists = target.exists()
    except RefoldError as error:
        return [
            *findings,
            Finding("log", False, str(error), "name another place with --log, or install the release it says"),
        ]
    findings += disk(path if exists else nearest(path), is_log=exists)
    if not exists:
        return [*findings, Finding("log", True, f"{path}: none yet; the first observation creates it")]
    findings.append(Finding("format", True, f"{path}: file format {FORMAT_NUMBER}, which this release reads"))
    findings += _owner(path, target.owner_timeout_s)
    findings += inside(target, looking, "restore the log from a copy, or import an export of it")
    return findings


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
            "continue that process (kill -CONT) or end it; reading works meanwhile",
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


def _has_client() -> bool:
    """Whether Kafka's client can be imported. The findings about libraries report if it is missing."""
    return importlib.util.find_spec("confluent_kafka") is not None


def libraries(*, with_kafka: bool) -> Iterator[Finding]:
    """Yield a finding for each library that is needed.

    Args:
        with_kafka: Whether to check those of a log on Kafka too.
    """
    yield Finding("refold", True, f"{refold.__version__} on Python {platform.python_version()}, {platform.platform()}")
    kernel = find_kernel()
    remedy = "install the one of this release: pip install --upgrade 'refold[fast]', or make kernel in a checkout"
    yield Finding("kernel", not kernel.is_unusable, kernel.text, remedy)
    if with_kafka:
        yield Finding("allocator", True, f"{allocator()} (docs/OPERATIONS.md, Scale: which one is fast for workers)")
    try:
        required = importlib.metadata.requires("refold") or []
    except importlib.metadata.PackageNotFoundError:
        return  # it runs from its source, and has imported its libraries by now
    needed: dict[str, tuple[str, bool]] = {}
    for each in required:
        found = _REQUIREMENT.match(each)
        is_extra = "extra ==" in each
        is_kafkas = with_kafka and any(f'extra == "{name}"' in each or f"extra == '{name}'" in each for name in _EXTRAS)
        if found and (not is_extra or is_kafkas):
            needed.setdefault(found[1], (found[2], is_extra))
    for name, (least, is_extra) in sorted(needed.items()):
        yield from _library(name, least, is_extra=is_extra)
    if with_kafka:
        yield from _librdkafka()


def _library(name: str, least: str, *, is_extra: bool) -> Iterator[Finding]:
    install = f"pip install 'refold{'[kafka]' if is_extra else ''}' again, or pip install '{name}>={least}'"
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        yield Finding(name, False, "not installed", f"install refold again: {install}")
        return
    if _numbers(version) < _numbers(least):
        yield Finding(name, False, f"{version}, and refold was not tested with less than {least}", install)
    else:
        yield Finding(name, True, version)


def _librdkafka() -> Iterator[Finding]:
    """Check for another librdkafka than the one confluent-kafka was built with."""
    try:
        import confluent_kafka
    except ModuleNotFoundError:
        return  # reported above
    own, linked = confluent_kafka.version()[0], confluent_kafka.libversion()[0]
    is_as_old = _numbers(linked)[:2] >= _numbers(own)[:2]
    remedy = "pip install --force-reinstall --only-binary :all: confluent-kafka, which brings its own"
    yield Finding("librdkafka", is_as_old, f"{linked}, under confluent-kafka {own}", remedy)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", version)[:3])
