"""Logs as archives, archives as logs, and archives with arbitrary items."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from refold.avro.errors import InputError
from refold.avro.shipped import shipped_types
from refold.streams.client import Log
from refold.streams.exchange.archive_export import write_archive
from refold.streams.exchange.archive_form import Item, write_items
from refold.streams.exchange.archive_import import Archive, read_items
from refold.streams.exchange.files import ExchangeFile
from refold.streams.point import Points
from refold.streams.rocks.layout import is_log
from refold_tests.clock import FileClock
from refold_tests.sample_types import OTHER, THING, defined, document

FORK_ID = b"a fork's own id."
STEP, DOCUMENT = (
    defined(document("step", folded={"type": "long", "refold.reducer": "latest"})),
    shipped_types()["document"],
)
TYPES = (THING, OTHER, STEP, DOCUMENT)
LATER = tuple(
    defined(document(THING.name, **fields))
    for fields in (
        {"high": {"type": "long", "refold.reducer": "min"}},
        {"high": {"type": "long", "refold.reducer": "sum"}, "extra": {"type": "string", "refold.reducer": "latest"}},
    )
)


def archived(log: Log, path: Path, **limits: Any) -> Path:
    """Write the log's current state to an archive. limits: passed to `write_archive`."""
    now_ms = log._runtime.now_micros() // 1000
    with log.port.frozen() as port, path.open("wb") as file:
        write_archive(file, port, Points(port, now_ms).end(), now_ms, **limits)
    return path


def restored(file: Path, folder: Path, fork_id: bytes | None = None, now_ms: int | None = None) -> Path:
    """Restore an archive into a folder, together with a clock."""
    folder.mkdir()
    Archive(ExchangeFile(file)).restore(folder / "log", fork_id)
    if now_ms is not None:
        FileClock(folder / "clock").set(now_ms)
    return folder


def contents_of(path: Path) -> dict[str, bytes]:
    """Return the large contents of the log in a folder, by name."""
    return {each.name: each.read_bytes() for each in (path / "log" / "blobs").rglob("*") if each.is_file()}


def items_of(file: Path) -> list[Item]:
    """Return the items of an archive, in order."""
    return [item for _, item in read_items(ExchangeFile(file))]


def forged(file: Path, items: Sequence[Item]) -> Path:
    """Write an archive with these items and the end that matches them."""
    with file.open("wb") as target:
        write_items(target, items, b"0123456789abcdef")
    return file


def refused(file: Path, folder: Path) -> str:
    """Return why an archive is refused. Afterwards the folder must hold nothing that could be taken for a log."""
    with pytest.raises(InputError) as caught:
        Archive(ExchangeFile(file)).restore(folder)
    assert not is_log(folder)
    if folder.exists():
        assert [each.name for each in folder.iterdir()] == ["FORMAT.creating"]
    return str(caught.value)
