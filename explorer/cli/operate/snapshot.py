"""`refold snapshot`: seal, list and remove the snapshots that rebuilds start from."""

from __future__ import annotations

from collections.abc import Sequence

import click

from refold.avro.errors import InputError
from refold.explorer.cli.options import as_json, on_log
from refold.explorer.cli.output.fitting import TableColumn
from refold.explorer.cli.output.screen import Screen, counted, moment
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.shapes import collected_json, snapshot_json
from refold.streams.client import Log
from refold.streams.snapshots.garbage import Collected
from refold.streams.snapshots.manifest import Epoch
from refold.streams.snapshots.store import Snapshot, every_epoch

COLUMNS = (
    TableColumn("epoch", "cyan", is_fixed=True),
    TableColumn("kind", is_fixed=True),
    TableColumn("entities"),
    TableColumn("records"),
    TableColumn("bytes"),
    TableColumn("recorded", "dim", is_fixed=True),
    TableColumn("pinned", "dim", is_fixed=True),
    TableColumn("root", is_fixed=True),
)
ROOT_DIGITS = 12


@click.command()
@click.argument("epochs", metavar="[EPOCH]...", nargs=-1)
@click.option("--pin", is_flag=True, help="Keep these epochs for ever; without EPOCH, those that are sealed now.")
@click.option("--unpin", is_flag=True, help="Let these epochs age as others do.")
@click.option("--list", "list_", is_flag=True, help="List every epoch; seal none.")
@click.option("--collect", is_flag=True, help="Remove epochs that are too old to keep, now; seal none.")
@click.option("--dry-run", is_flag=True, help="With --collect: remove nothing, only print what would become slower.")
@click.option("--damaged", is_flag=True, help="With --collect: also remove epochs whose manifest cannot be read.")
@as_json
@on_log
def snapshot(
    target: LogTarget, epochs: tuple[str, ...], pin: bool, unpin: bool, list_: bool, collect: bool, dry_run: bool,
    damaged: bool, as_json: bool,
) -> int:  # fmt: skip
    """Seal the state of every entity; rebuilds start from it.

    An epoch is one partition as it was at an offset, named PARTITION=OFFSET. A base holds every open entity; a delta
    holds those that changed since the epoch before. Epochs are also sealed automatically as the log grows, and removed
    automatically as they age. These stay: all epochs of the last hour, the last base of each hour for a day, the last
    base of each day for 30 days, the newest epoch, and pinned ones for ever. The records of a removed epoch stay for
    another 6 hours, for rebuilds that have begun. Epochs change no answer, only how long it takes.

    Exits with 1 when --collect had to leave a partition as it was.

    \b
    Examples
      refold snapshot
      refold snapshot --pin
      refold snapshot --unpin 0=41250 1=40981
      refold snapshot --list
      refold snapshot --collect --dry-run
    """
    _check(epochs, pin=pin, unpin=unpin, list_=list_, collect=collect)
    if (dry_run or damaged) and not collect:
        raise InputError(f"{'--dry-run' if dry_run else '--damaged'} goes with --collect")
    if list_:
        with target.read() as log:
            return _show_all(log.snapshots(), as_json=as_json)
    if dry_run:
        with target.read() as log:
            return _show_collected(log.collect(dry_run=True, damaged=damaged), dry_run=True, as_json=as_json)
    with target.write(make=False) as log:
        if collect:
            return _show_collected(log.collect(damaged=damaged), dry_run=False, as_json=as_json)
        if epochs:
            named = _epochs_named(epochs, _epochs_of(log))
            if pin:
                log.pin(named)
            else:
                log.unpin(named)
            return _show_all(log.snapshots(named), as_json=as_json)
        return _seal(log, pin=pin, as_json=as_json)


def _check(epochs: Sequence[str], *, pin: bool, unpin: bool, list_: bool, collect: bool) -> None:
    chosen = [name for name, given in zip(("--pin", "--unpin", "--list", "--collect"), (pin, unpin, list_, collect),
                                          strict=True) if given]  # fmt: skip
    if len(chosen) > 1:
        raise InputError(f"{chosen[0]} and {chosen[1]}: give one of them at a time")
    if epochs and not (pin or unpin):
        raise InputError(f"{epochs[0]!r:.80}: an EPOCH needs --pin or --unpin")
    if unpin and not epochs:
        raise InputError("--unpin: name the epochs, as refold snapshot --list shows them")


def _epochs_of(log: Log) -> list[Epoch]:
    log.port.refresh()
    return list(every_epoch(log.port.snapshots, log.port.partitions))


def _epochs_named(epochs: Sequence[str], there: Sequence[Epoch]) -> list[Epoch]:
    """Return the epochs of these names. Two epochs share a name if a type was redefined between them."""
    found = []
    for name in epochs:
        some = [epoch for epoch in there if str(epoch) == name]
        if not some:
            raise InputError(
                f"{name!r:.80}: there is no such epoch; give PARTITION=OFFSET as refold snapshot --list shows it"
            )
        found += some
    return found


def _seal(log: Log, *, pin: bool, as_json: bool) -> int:
    screen = Screen()
    before = set(_epochs_of(log))
    found = log.snapshots(log.snapshot(pin=pin))
    new = [each for each in found if each.epoch not in before]
    records, size = sum(each.records for each in new), sum(each.size for each in new)
    if as_json:
        epochs = [{**snapshot_json(each), "new": each.epoch not in before} for each in found]
        screen.json({"epochs": epochs, "records": records, "bytes": size})
        return 0
    _table(screen, new)
    if len(new) < len(found):
        screen.say(f"{counted(len(found) - len(new), 'partition')} unchanged since the last epoch")
    if not found:
        screen.say("nothing is recorded yet, so there is nothing to seal")
        return 0
    screen.say(f"{counted(len(new), 'epoch')} sealed: {counted(records, 'record')}, {counted(size, 'byte')} written")
    if pin:
        screen.say(f"{counted(len(found), 'epoch')} pinned")
    return 0


def _show_all(found: Sequence[Snapshot], *, as_json: bool) -> int:
    screen = Screen()
    if as_json:
        screen.json([snapshot_json(each) for each in found])
        return 0
    _table(screen, found)
    if not found:
        screen.say("no epochs yet; seal some with `refold snapshot`")
    return 0


def _table(screen: Screen, found: Sequence[Snapshot]) -> None:
    rows = []
    for each in found:
        pinned = "-" if each.pinned_at is None else moment(each.pinned_at * 1000)
        if each.problem:
            rows.append([str(each.epoch), "damaged", "-", "-", "-", "-", pinned, each.problem])
            continue
        numbers = [f"{number:,}" for number in (each.entities, each.records, each.size)]
        kind = "base" if each.is_base else "delta"
        root = each.root.hex()[:ROOT_DIGITS]
        rows.append([str(each.epoch), kind, *numbers, moment(each.recorded_at * 1000), pinned, root])
    screen.table(COLUMNS, rows)


def _show_collected(found: Sequence[Collected], *, dry_run: bool, as_json: bool) -> int:
    screen = Screen()
    problems = [problem for each in found for problem in each.problems]
    if as_json:
        screen.json(collected_json(found, dry_run=dry_run))
        return int(bool(problems))
    for each in found:
        if each.removed:
            screen.say(f"partition {each.partition}: {counted(len(each.removed), 'epoch')} off, {each.kept:,} stay")
        for stretch in each.slower:
            begins = f"epoch {each.partition}={stretch.begins_at}" if stretch.begins_at else "the beginning"
            screen.say(
                f"  offsets {stretch.start:,} to {stretch.end - 1:,} are rebuilt from {begins}: "
                f"at most {counted(stretch.more_records, 'record')} more to replay"
            )
    removed, records = sum(len(each.removed) for each in found), sum(each.records for each in found)
    size, waiting = sum(each.removed_bytes for each in found), sum(each.waiting for each in found)
    done = "would be removed" if dry_run else "removed"
    screen.say(
        f"{counted(removed, 'epoch')}, {counted(records, 'snapshot record')} and {counted(size, 'byte')} {done}; "
        f"{sum(each.kept for each in found):,} stay"
    )
    if waiting:
        screen.say(f"{counted(waiting, 'snapshot record')} of removed epochs will be removed later")
    for problem in problems:
        screen.say(problem, "red")
    return int(bool(problems))
