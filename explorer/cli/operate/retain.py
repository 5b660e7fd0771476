"""`refold retain`: how long the content of agents' runs is kept, and removal of expired content."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence

import click

from refold.agents.keys.ring import KeyRing
from refold.agents.retention.classes import DAYS, days_of
from refold.agents.retention.plan import Plan, PlannedRun, plan
from refold.agents.retention.sweep import GRACE_S, SweepResult, sweep
from refold.avro.errors import InputError
from refold.explorer.cli.options import as_json, on_log
from refold.explorer.cli.output.fitting import TableColumn
from refold.explorer.cli.output.screen import Screen, counted, moment, printable
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.operate import plan_json
from refold.streams.blobs.store import ContentStore

COLUMNS = (
    TableColumn("run", "cyan"),
    TableColumn("agent"),
    TableColumn("class", is_fixed=True),
    TableColumn("ended", "dim", is_fixed=True),
    TableColumn("due", "dim", is_fixed=True),
    TableColumn("contents"),
    TableColumn("bytes"),
    TableColumn("kept because"),
)


@click.command()
@click.option("--dry-run", is_flag=True, help="Remove nothing, only print what would be removed [the default].")
@click.option("--apply", "applies", is_flag=True, help="Remove expired content. This is final.")
@click.option(
    "--check", "is_check", is_flag=True, help="Only check whether destroyed keys and removed contents are still stored."
)
@click.option(
    "--class", "classes", multiple=True, metavar="NAME=DAYS",
    help="For how many days a class of runs is kept; may be repeated "
         f"[{', '.join(f'{name}={count:g}' for name, count in DAYS.items())}].",
)  # fmt: skip
@click.option("--all", "is_all", is_flag=True, help="List the runs that are kept too, and why.")
@as_json
@on_log
def retain(
    target: LogTarget,
    dry_run: bool,
    applies: bool,
    is_check: bool,
    classes: tuple[str, ...],
    is_all: bool,
    as_json: bool,
) -> int:
    """Remove the content of old runs.

    The input, messages, calls and results of a run are removed once the days of its class have passed since it ended:
    its key is destroyed and its contents are deleted. The fact that it ran is kept, with ids, order, hashes and
    provenance, and still verifies. These are kept at any age: open, pinned and golden runs, and the parents of forks
    that are kept. Flagged runs are kept for the days of the class `flagged`.

    A damaged key is named with its location, and the exit status is 1. All other runs are processed.

    \b
    Examples
      refold retain
      refold retain --class success=3 --class failed=60 --all
      refold retain --apply
      refold retain --check
    """
    if dry_run + applies + is_check > 1:
        raise InputError("--dry-run, --apply and --check: give one of them")
    if is_check:
        with target.read() as log:
            return _check_remaining(log.vault.ring, log.port.blobs, as_json=as_json)
    days, now_micros = days_of(classes), time.time_ns() // 1000
    if applies:
        with target.write(make=False) as log:
            ring = log.vault.ring
            done = sweep(log, ring, days, now_micros)
            return _swept(done, "" if ring is None else ring.place, is_all=is_all, as_json=as_json)
    with target.read() as log:
        found = plan(log, log.vault.ring, days, now_micros)
    screen = Screen()
    if as_json:
        screen.json({"dry_run": True, **plan_json(found)})
        return _print_damage(found, {})
    _table(screen, found, is_all=is_all)
    size = sum(each for each, _ in found.free.values())
    screen.say(
        f"{counted(len(found.expiring), 'run')} would expire: {_keys(found.expiring)}, "
        f"{counted(len(found.free), 'content')}, {counted(size, 'byte')}; {_kept_text(found)}"
    )
    if found.expiring:
        screen.say("nothing was removed; do it with --apply")
    return _print_damage(found, {})


def _swept(swept: SweepResult, place: str, *, is_all: bool, as_json: bool) -> int:
    screen = Screen()
    if as_json:
        done = {"keys": swept.keys, "contents": swept.contents, "bytes": swept.bytes, "left": swept.left}
        screen.json({"dry_run": False, **plan_json(swept.plan), "removed": done, "failed": swept.failed,
                     "remaining": swept.remaining, "remaining_contents": swept.remaining_contents})  # fmt: skip
        return _print_damage(swept.plan, swept.failed)
    _table(screen, swept.plan, is_all=is_all)
    screen.say(
        f"{counted(len(swept.runs), 'run')} expired: {counted(swept.keys, 'key')}, "
        f"{counted(swept.contents, 'content')} and {counted(swept.bytes, 'byte')} removed; {_kept_text(swept.plan)}"
    )
    if swept.left:
        screen.say(f"{counted(swept.left, 'content')} put in the last {GRACE_S // 60} minutes: left for the next run")
    if swept.remaining:
        screen.say(_remaining_text(swept.remaining, place))
    if swept.remaining_contents:
        screen.say(contents_remaining(swept.remaining_contents))
    return _print_damage(swept.plan, swept.failed)


def _check_remaining(ring: KeyRing | None, store: ContentStore | None, *, as_json: bool) -> int:
    """Print how many destroyed keys and removed contents are still stored. Return exit status 1 if there are any."""
    remaining = 0 if ring is None else ring.remaining()
    contents = 0 if store is None else store.remaining()
    screen = Screen()
    if as_json:
        screen.json({
            "keys": None if ring is None else ring.place, "remaining": remaining, "remaining_contents": contents,
        })  # fmt: skip
        return 1 if remaining or contents else 0
    if ring is None:
        screen.say("no key ring is open here: nothing is sealed, and no key can be left")
    elif remaining:
        screen.say(_remaining_text(remaining, ring.place))
    else:
        screen.say(f"no destroyed key is left in {ring.place}")
    if contents:
        screen.say(contents_remaining(contents))
    elif store is not None and store.erases_later:
        screen.say(f"no removed content is left in {store.url}")
    return 1 if remaining or contents else 0


def contents_remaining(count: int) -> str:
    """Describe removed contents whose bytes are still on the brokers' disks."""
    return (
        f"{counted(count, 'removed content')} still on the brokers' disks: they are dropped when the topic is "
        "compacted. Run `refold retain --apply` or `refold blobs --apply` once more after a day, then "
        "`refold retain --check`"
    )


def _remaining_text(remaining: int, place: str) -> str:
    return (
        f"{counted(remaining, 'destroyed key')} still on the brokers' disks, in {place}, wrapped by the master key: "
        "they are dropped when the topic is compacted. Run `refold retain --apply` once more after an hour, then "
        "`refold retain --check`"
    )


def _print_damage(found: Plan, failed: Mapping[str, str]) -> int:
    """Print each key that is damaged or could not be destroyed to standard error. Return the exit status."""
    for each in found.damaged:
        run = each.key_id.removeprefix("run:")
        planned = found.runs.get(run)
        whose = f"run {run}: " if planned else ""
        print(f"refold: {printable(whose + each.why)}", file=sys.stderr)
    for run, why in failed.items():
        print(f"refold: {printable(f'run {run}: its key was not destroyed: {why}')}", file=sys.stderr)
    return 1 if found.damaged or failed else 0


def _table(screen: Screen, found: Plan, *, is_all: bool) -> None:
    rows = [_row(each) for each in found.runs.values() if each.expires or (is_all and each.kept)]
    screen.table(COLUMNS, rows)


def _row(each: PlannedRun) -> Sequence[str]:
    kept = ", ".join(each.kept) or "-"
    return [each.run, each.agent or "-", each.retention_class, moment(each.ended_at), moment(each.due_at),
            f"{each.contents:,}", f"{each.bytes:,}", kept]  # fmt: skip


def _keys(runs: Sequence[PlannedRun]) -> str:
    return counted(sum(each.has_key for each in runs), "key")


def _kept_text(found: Plan) -> str:
    kept = sum(bool(each.kept) for each in found.runs.values())
    gone = len(found.runs) - kept - len(found.expiring)
    return f"{kept:,} kept" + (f", {gone:,} with nothing left to remove" if gone else "")
