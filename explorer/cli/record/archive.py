"""Archives on the command line: write a log to a file, create a log from a file, or fork an archived log."""

from __future__ import annotations

import sys
import time
import uuid
from pathlib import Path

from refold.avro.errors import InputError
from refold.explorer.cli.output.progress import counting, files_read
from refold.explorer.cli.output.screen import Screen, counted
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.shapes import point_json
from refold.streams.exchange.archive_export import write_archive
from refold.streams.exchange.archive_form import End
from refold.streams.exchange.archive_import import Archive
from refold.streams.exchange.atomic_file import whole_file
from refold.streams.exchange.files import ExchangeFile
from refold.streams.log.file.restore import fork
from refold.streams.open import content_store_in_url, file_path, partitions_in_url
from refold.streams.point import Point, Points

ARCHIVE = "archive"
STDOUT = "-"


def export_archive(target: LogTarget, file: str, *, force: bool, as_json: bool) -> None:
    """Write the whole log, as it is now, to a file."""
    if Path(file).suffix in (".gz", ".jsonl"):
        raise InputError(f"{file}: an archive is an Avro container; give a name that ends in .avro")
    now_ms = time.time_ns() // 1_000_000
    with target.read() as log, log.port.frozen() as port:
        point = Point(Points(port, now_ms).end())
        with counting("Archiving", point.cut.records, "records") as progress:
            if file == STDOUT:
                write_archive(sys.stdout.buffer, port, point.cut, now_ms, progress)
                sys.stdout.buffer.flush()
                return
            with whole_file(Path(file), replace=force) as stream:
                end = write_archive(stream, port, point.cut, now_ms, progress)
    _report_export(Screen(), point, end, file, as_json)


def import_archive(target: LogTarget, files: list[ExchangeFile], *, is_fork: bool, as_json: bool) -> None:
    """Create a log from an archive, and fork it if `is_fork` is set. Without a file, fork a log that was created from
    an archive.
    """
    screen = Screen()
    path = file_path(target.url)
    fork_id = uuid.uuid4().bytes if is_fork else None
    if not files and fork_id is not None:
        after = fork(path, fork_id)
        assert after.forked_from is not None
        if as_json:
            screen.json({"log": after.id.hex(), "forked_from": after.forked_from.hex()})
        else:
            screen.say(f"{path} takes appends now, as the log {after.id.hex()}, forked from {after.forked_from.hex()}")
        return
    if len(files) != 1:
        raise InputError("an archive makes one log: name one file")
    if target.exists():
        raise InputError(
            f"{path}: there is a log here already; an archive makes a log of its own: give another place with --log"
        )
    paths = [files[0].path]
    with files_read("Checking", paths) as progress:
        archive = Archive(files[0], progress[0])
    partitions = partitions_in_url(target.url)
    if partitions not in {None, len(archive.cut.offsets)}:
        raise InputError(
            f"{files[0].shown}: the archived log has {len(archive.cut.offsets)} partitions; leave out "
            f"?partitions={partitions}"
        )
    with files_read("Importing", paths) as progress:
        identity = archive.restore(path, fork_id, progress[0], content_store_in_url(target.url))
    if as_json:
        forked_from = None if identity.forked_from is None else identity.forked_from.hex()
        counts = {"observations": archive.cut.records, "definitions": archive.cut.schemas}
        screen.json({"log": identity.id.hex(), "forked_from": forked_from, "cut": str(archive.cut), **counts})
        return
    screen.say(f"{counted(archive.cut.records, 'record')} in {path}, the log {identity.id.hex()}")
    if fork_id is None:
        screen.say("it answers as the archived log did, and takes no appends; --fork lets it continue under a new id")


def _report_export(screen: Screen, point: Point, end: End, file: str, as_json: bool) -> None:
    if as_json:
        counts = {name: count for name, count in end._asdict().items() if name != "sha256"}
        screen.json({"file": file, **counts, "sha256": end.sha256.hex(), **point_json(point)})
        return
    screen.point(point)
    parts = (
        counted(end.observations, "record"), counted(end.definitions, "definition"),
        counted(end.contents, "content"), counted(end.markers, "marker"),
    )  # fmt: skip
    screen.say(f"{', '.join(parts)} in {file}")
