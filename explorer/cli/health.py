"""The examinations behind `refold doctor`; each gives findings and none of them raises."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

from refold.avro.errors import OwnerGone, OwnerSilent, RefoldError, StorageError
from refold.explorer.cli.findings import Finding, Looking, disk, inside, nearest
from refold.explorer.cli.health_kafka import on_kafka
from refold.explorer.cli.libraries import libraries
from refold.explorer.cli.options import Place
from refold.streams.log.file.client import Client
from refold.streams.open import file_path, is_kafka
from refold.streams.rocks.layout import FORMAT_NUMBER


def examine(place: Place, looking: Looking) -> list[Finding]:
    """Every finding about a log and this machine."""
    findings = list(libraries(with_kafka=is_kafka(place.url)))
    if is_kafka(place.url):
        return [*findings, *(on_kafka(place, looking) if _has_client() else ())]
    try:
        path = file_path(place.url)
        exists = place.exists()
    except RefoldError as error:
        return [
            *findings,
            Finding("log", False, str(error), "name another place with --log, or install the release it says"),
        ]
    findings += disk(path if exists else nearest(path), is_log=exists)
    if not exists:
        return [*findings, Finding("log", True, f"{path}: none yet; the first observation makes it")]
    findings.append(Finding("format", True, f"{path}: file format {FORMAT_NUMBER}, which this release reads"))
    findings += _owner(path, place.owner_timeout_s)
    findings += inside(place, looking, "restore the log from a copy, or import an export of it")
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


def _has_client() -> bool:
    """Whether Kafka's client can be imported; that it is missing is said among the libraries."""
    return importlib.util.find_spec("confluent_kafka") is not None
