"""`refold blobs`: the store of contents, its contents that no observation refers to, and copying it to another
store.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict

import click

from refold.avro.errors import InputError
from refold.explorer.cli.operate.retain import contents_remaining
from refold.explorer.cli.options import as_json, on_log
from refold.explorer.cli.output.progress import reading
from refold.explorer.cli.output.screen import Screen, counted, printable
from refold.explorer.queries.log_target import LogTarget
from refold.streams.blobs.copy import copy_contents
from refold.streams.blobs.garbage import GRACE_S, Garbage, collect
from refold.streams.blobs.store import ContentStore
from refold.streams.blobs.url import store_url

OWN = "own"
NAMES = "/PATH, file:///PATH or s3://BUCKET/PREFIX"
GRACE_HOURS = GRACE_S / 3600


@click.command()
@click.option("--dry-run", is_flag=True, help="Remove nothing, only print what would be removed [the default].")
@click.option("--apply", "applies", is_flag=True, help="Remove contents that nothing refers to. This is final.")
@click.option(
    "--grace", "grace_hours", type=float, default=GRACE_HOURS, metavar="HOURS",
    help=f"Keep contents stored in the last N hours: their observation may follow [{GRACE_HOURS:g}].",
)  # fmt: skip
@click.option(
    "--copy-to", "copy_to", metavar="URL",
    help=f"Copy the contents to another store: {NAMES}; {OWN} for the log's own.",
)  # fmt: skip
@as_json
@on_log
def blobs(
    target: LogTarget, dry_run: bool, applies: bool, grace_hours: float, copy_to: str | None, as_json: bool
) -> int:  # fmt: skip
    """Count stored contents, and those that nothing refers to.

    A content is stored before the observation that names it is recorded. A process that is killed in between leaves a
    content that nothing refers to: no answer depends on it, and --apply removes it. The command reads every
    observation, and follows the contents that a content names. For contents that have expired see `refold retain`.

    To move a log's contents to another store: copy them with --copy-to, stop every process that records, copy once
    more, which copies only new contents, and start everything with the other store (?blobs=, REFOLD_BLOBS, or neither).
    A copy that was stopped continues when it is started again. Nothing is removed from the old store.

    \b
    Examples
      refold blobs
      refold blobs --apply
      refold blobs --copy-to s3://bucket/agents
    """
    if copy_to is not None:
        if dry_run or applies:
            raise InputError("--copy-to: give it without --dry-run and --apply")
        return _copy(target, copy_to, as_json=as_json)
    if dry_run and applies:
        raise InputError("--dry-run and --apply: give one of them")
    if not 0 <= grace_hours < float("inf"):
        raise InputError(f"--grace {grace_hours:g}: give hours, from 0 on")
    now_ms = time.time_ns() // 1_000_000
    with target.write(make=False) if applies else target.read() as log:
        if not log.port.has_store:
            raise InputError(f"{log.port.url}: this log has no store of contents, so there is nothing to count")
        with reading("Reading what is named", "records") as progress:
            found = collect(log.port, now_ms, grace_s=grace_hours * 3600, dry_run=not applies, progress=progress)
        parts, remaining = _count_unerased(log.port.blobs, now_ms - round(grace_hours * 3_600_000), applies=applies)
    _print_result(found, parts, remaining, grace_hours, applies=applies, as_json=as_json)
    return 0


def _count_unerased(store: ContentStore, before_ms: int, *, applies: bool) -> tuple[int, int]:
    """Count unfinished writes of killed processes, and removed contents that are not erased yet."""
    parts, remaining = store.sweep(before_ms, dry_run=not applies), store.remaining()
    if applies and remaining:
        store.erase_removed()
    return parts, remaining


def _copy(target: LogTarget, copy_to: str, *, as_json: bool) -> int:
    screen = Screen()
    with target.write(make=False) as log, log.port.other_store(None if copy_to == OWN else store_url(copy_to)) as other:
        if not log.port.has_store:
            raise InputError(f"{log.port.url}: this log has no store of contents, so there is nothing to copy")
        source = log.port.blobs.url
        if other.url == source:
            raise InputError(f"--copy-to {copy_to}: the log's contents are there already")
        with reading("Copying contents", "contents", lines=not as_json) as progress:
            done = copy_contents(log.port.blobs, other, progress)
    if as_json:
        screen.json({"from": source, "to": other.url, **asdict(done)})
        return 1 if done.damaged else 0
    screen.say(
        f"{counted(done.contents, 'content')}, {counted(done.bytes, 'byte')}, copied from {source} to {other.url}; "
        f"{done.there:,} were there already, {done.expired:,} noted as expired"
    )
    for why in done.damaged.values():
        print(f"refold: {printable(why)}", file=sys.stderr)
    return 1 if done.damaged else 0


def _print_result(
    found: Garbage, parts: int, remaining: int, grace_hours: float, *, applies: bool, as_json: bool
) -> None:  # fmt: skip
    screen = Screen()
    if as_json:
        screen.json({"dry_run": not applies, **asdict(found), "parts": parts, "remaining": remaining})
        return
    if parts:
        done = "removed" if applies else "to be removed with --apply"
        screen.say(f"{counted(parts, 'part')} of contents whose put was not finished: {done}")
    if remaining:
        screen.say(contents_remaining(remaining))
    screen.say(f"{counted(found.contents, 'content')} in the store, {counted(found.bytes, 'byte')}")
    if found.young:
        screen.say(f"{counted(found.young, 'content')} stored in the last {grace_hours:g} hours: not examined")
    unnamed = f"{counted(found.unnamed, 'content')}, {counted(found.unnamed_bytes, 'byte')}"
    if not applies:
        screen.say(f"{unnamed} that nothing refers to" + ("; remove them with --apply" if found.unnamed else ""))
        return
    screen.say(f"{counted(found.removed, 'content')} and {counted(found.removed_bytes, 'byte')} removed")
    if found.left:
        screen.say(f"{counted(found.left, 'content')} stored again meanwhile: kept")
