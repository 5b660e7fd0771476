"""`refold import` and `refold export`."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from refold.avro.errors import InputError, RefoldError
from refold.avro.shipped import shipped_types
from refold.explorer.cli.arrivals import FORMATS, Arrival, arrival_of
from refold.explorer.cli.options import WHEN, Place, as_json, at, on_log
from refold.explorer.cli.progress import counted, files_read
from refold.explorer.cli.screen import Screen
from refold.explorer.cli.shapes import point_json
from refold.streams.exchange.container import SUFFIX, write_container
from refold.streams.exchange.intake import Intake
from refold.streams.exchange.outgoing import Outgoing
from refold.streams.exchange.output import whole_file, write_json_lines
from refold.streams.exchange.vocabulary import Vocabulary

STDIN = "-"


@click.command("import")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--format", "form", type=click.Choice(FORMATS), default=FORMATS[0], show_default=True,
              help="What the files hold.")
@as_json
@on_log  # fmt: skip
def import_(place: Place, files: tuple[str, ...], form: str, as_json: bool) -> int:
    """Bring in exported observations, or recorded conversations.

    Every line is checked before the first is recorded, so a file with a bad line leaves the log as it was. What the log
    has already is not recorded again: an import that was stopped is finished by repeating it. - is standard input;
    gzip is recognised by itself.

    \b
    Formats
      observations   what `refold export` writes: JSON lines, or an Avro container (.avro)
      chat           JSON lines of OpenAI-style message lists, tool calls included
      tau-bench      recorded tau-bench runs: conversations with the reward of each

    \b
    Examples
      refold import runs.jsonl.gz --format tau-bench
      refold import backup.jsonl --log file:copy
      zcat chats.jsonl.gz | refold import - --format chat
    """
    with _on_disk(files, form) as (paths, names):
        held, vocabulary = _surroundings(place)
        arrival = arrival_of(form, paths, names, vocabulary, held)
        with files_read("Checking", paths) as progress:
            total = arrival.check(progress)
        with place.write() as log:
            intake = Intake(log)
            with _accounted(intake, total), files_read("Importing", paths) as progress:
                arrival.record(log, intake, progress)
    _report(Screen(), intake, as_json)
    return 0


@contextlib.contextmanager
def _on_disk(files: tuple[str, ...], form: str) -> Iterator[tuple[list[Path], list[str]]]:
    """The files to read, and their names in messages: what can be read only once is put on disk first."""
    if files.count(STDIN) > 1:
        raise InputError("-: standard input can be read once; name it once")
    with contextlib.ExitStack() as stack:
        paths, names = [], []
        for number, given in enumerate(files):
            path = Path(given)
            if given == STDIN or (path.exists() and not path.is_file() and not path.is_dir()):
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="refold-import-")))
                spooled = folder / str(number)
                with spooled.open("wb") as copy, contextlib.ExitStack() as source:
                    stream = sys.stdin.buffer if given == STDIN else source.enter_context(path.open("rb"))
                    shutil.copyfileobj(stream, copy, 1 << 20)
                path = spooled
            paths.append(path)
            names.append("standard input" if given == STDIN else given)
        yield paths, names


def _surroundings(place: Place) -> tuple[set[bytes], Vocabulary]:
    raise NotImplementedError


@contextlib.contextmanager
def _accounted(intake: Intake, total: int) -> Iterator[None]:
    """Say how far an import got that something stops."""
    try:
        yield
    except BaseException as error:
        how_far = (f"at least {intake.durable:,} of {total:,} observations are recorded; import the same again to finish, "
                   "nothing is recorded twice")  # fmt: skip
        if isinstance(error, (RefoldError, OSError)):
            raise InputError(f"the import stopped: {' '.join(str(error).split())}; {how_far}") from error
        with contextlib.suppress(OSError):
            print(f"refold: the import was stopped; {how_far}", file=sys.stderr)
        raise


def _report(screen: Screen, intake: Intake, as_json: bool) -> None:
    if as_json:
        screen.json({"read": intake.read, "new": intake.new, "known": intake.known, "entities": len(intake.entities)})
        return
    screen.say(f"{intake.read:,} observations read of {len(intake.entities):,} entities: "
               f"{intake.new:,} new, {intake.known:,} already known")  # fmt: skip
