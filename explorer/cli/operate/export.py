"""`refold export`: write observations, or the whole log, to a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO

import click

from refold.avro.errors import InputError
from refold.explorer.cli.options import WHEN, as_json, at, on_log
from refold.explorer.cli.output.progress import Advance, counting
from refold.explorer.cli.output.screen import Screen, counted
from refold.explorer.cli.record.archive import STDOUT, export_archive
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.shapes import point_json
from refold.streams.exchange.atomic_file import whole_file, write_json_lines
from refold.streams.exchange.container import SUFFIX, write_container
from refold.streams.exchange.export import RunningExport
from refold.streams.point import Point
from refold.streams.runtime import tune_garbage_collector


@click.command(epilog=WHEN)
@click.argument("file", metavar="FILE")
@at
@click.option("--archive", "is_archive", is_flag=True, help="Write the log itself: positions, times, types, markers.")
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@as_json
@on_log
def export(target: LogTarget, file: str, at: str | None, is_archive: bool, force: bool, as_json: bool) -> int:
    """Write every observation to a file.

    The file holds everything that is needed to import the observations elsewhere. The format is JSON lines, with gzip
    if the name ends in .gz, or an Avro container if it ends in .avro. - is standard output. The same observations give
    the same ids, hashes and root in whatever log they are imported into. The file is written completely or not at all.

    With --archive the file is the log itself, as an Avro container: every record at its partition and offset with its
    recorded_at, repeats included, types with their times, markers and contents. A log made from it (`refold import
    --format archive`) answers every cut, version, marker and time as this one does now. An archive holds the whole log,
    so it cannot be combined with --at.

    \b
    Examples
      refold export backup.jsonl.gz
      refold export log.avro --archive
      refold export observations.avro --at @deploy-1
      refold export - | grep tool_config | wc -l
    """
    if is_archive:
        if at is not None:
            raise InputError("an archive holds the whole log: leave out --at, or export observations without --archive")
        export_archive(target, file, force=force, as_json=as_json)
        return 0
    with target.read() as log:
        point = log.point(at)
        outgoing = RunningExport(log.port, point.cut)
        with counting("Exporting", point.cut.records, "records") as progress, tune_garbage_collector():
            if file == STDOUT:
                _write(sys.stdout.buffer, Path(), outgoing, progress)
                sys.stdout.buffer.flush()
            else:
                with whole_file(Path(file), replace=force) as stream:
                    _write(stream, Path(file), outgoing, progress)
    if file != STDOUT:
        _report(Screen(), point, outgoing.exported, file, as_json)
    return 0


def _write(target: IO[bytes], path: Path, outgoing: RunningExport, progress: Advance) -> None:
    if path.suffix == SUFFIX:
        write_container(target, outgoing.lines(progress), outgoing.definitions())
    else:
        lines = (line for part in (outgoing.definitions(), outgoing.lines(progress)) for line in part)
        write_json_lines(target, lines, zipped=path.suffix == ".gz")


def _report(screen: Screen, point: Point, exported: int, file: str, as_json: bool) -> None:
    if as_json:
        screen.json({"file": file, "observations": exported, **point_json(point)})
        return
    screen.point(point)
    screen.say(f"{counted(exported, 'observation')} in {file}")
