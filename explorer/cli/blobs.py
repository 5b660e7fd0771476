"""`refold blobs`: the store of contents, and what in it nothing names."""

from __future__ import annotations

import time
from dataclasses import asdict

import click

from refold.avro.errors import InputError
from refold.explorer.cli.options import Place, as_json, on_log
from refold.explorer.cli.progress import reading
from refold.explorer.cli.screen import Screen, counted
from refold.streams.blobs.garbage import GRACE_S, Garbage, collect

GRACE_HOURS = GRACE_S / 3600


@click.command()
@click.option("--dry-run", is_flag=True, help="Remove nothing, only say what would be [the default].")
@click.option("--apply", "applies", is_flag=True, help="Remove what nothing names. It cannot be brought back.")
@click.option(
    "--grace", "grace_hours", type=float, default=GRACE_HOURS, metavar="HOURS",
    help=f"Leave what was put so lately: its observation may be on its way [{GRACE_HOURS:g}].",
)  # fmt: skip
@as_json
@on_log
def blobs(place: Place, dry_run: bool, applies: bool, grace_hours: float, as_json: bool) -> int:
    """Count the contents in the store, and those that nothing in the log names.

    A content is put before the observation that names it is recorded. A process that ends in between leaves
    it behind: no answer depends on it, and --apply removes it. Every observation is read, and what a content
    names itself is followed. Contents that have expired are another matter: see `refold retain`.

    \b
    Examples
      refold blobs
      refold blobs --apply
    """
    if dry_run and applies:
        raise InputError("--dry-run and --apply: give one of them")
    if not 0 <= grace_hours < float("inf"):
        raise InputError(f"--grace {grace_hours:g}: give hours, from 0 on")
    now_ms = time.time_ns() // 1_000_000
    with place.write(make=False) if applies else place.read() as log:
        if not log.port.has_store:
            raise InputError(f"{log.port.url}: this log has no store of contents, so there is nothing to look at")
        with reading("Reading what is named", "records") as progress:
            found = collect(log.port, now_ms, grace_s=grace_hours * 3600, dry_run=not applies, progress=progress)
    _say(found, grace_hours, applies=applies, as_json=as_json)
    return 0


def _say(found: Garbage, grace_hours: float, *, applies: bool, as_json: bool) -> None:
    screen = Screen()
    if as_json:
        screen.json({"dry_run": not applies, **asdict(found)})
        return
    screen.say(f"{counted(found.contents, 'content')} in the store, {counted(found.bytes, 'byte')}")
    if found.young:
        screen.say(f"{counted(found.young, 'content')} put in the last {grace_hours:g} hours: not looked at")
    unnamed = f"{counted(found.unnamed, 'content')}, {counted(found.unnamed_bytes, 'byte')}"
    if not applies:
        screen.say(f"{unnamed} that nothing names" + ("; remove them with --apply" if found.unnamed else ""))
        return
    screen.say(f"{counted(found.removed, 'content')} and {counted(found.removed_bytes, 'byte')} removed")
    if found.left:
        screen.say(f"{counted(found.left, 'content')} put again meanwhile: left")
