"""`refold rebuild`: all or some entities of a log at a point, and how they were rebuilt."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

import click

from refold.avro.errors import InputError
from refold.explorer.cli.options import WHEN, as_json, at, clock, on_log
from refold.explorer.cli.output.progress import reading
from refold.explorer.cli.output.screen import Screen, counted, printable
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.shapes import rebuild_json

ROOT = re.compile(r"[0-9a-f]{64}\Z")
EPOCHS_SHOWN = 8


@click.command(epilog=WHEN)
@at
@clock
@click.option(
    "--type", "type_names", multiple=True, metavar="NAME", help="Only entities of this type; may be repeated."
)
@click.option("--entity", "entities", multiple=True, metavar="TYPE/ID", help="Only this entity; may be repeated.")
@click.option("--since", metavar="TIME", help="Leave out entities closed by an observation from before this time.")
@click.option("--full", is_flag=True, help="Replay from the first record, without snapshots.")
@click.option("--expect-root", metavar="HEX", help="Exit with 1 unless the root is this one.")
@as_json
@on_log
def rebuild(
    target: LogTarget,
    at: str | None,
    clock: str,
    type_names: tuple[str, ...],
    entities: tuple[str, ...],
    since: str | None,
    full: bool,
    expect_root: str | None,
    as_json: bool,
) -> int:
    """Rebuild every entity at a point; print the root hash.

    Two logs with the same observations have the same root, whatever their order, repeats and partitions. The rebuild
    starts from the snapshot nearest to the point, checks it, and replays the records after it: the answer is that of a
    full replay. With --type, --entity or --since it rebuilds only those entities, and prints no root.

    \b
    Examples
      refold rebuild
      refold rebuild --at 2026-11-21T03:12:00Z --json
      refold rebuild --type run --since 2026-11-01T00:00:00Z
      refold rebuild --log file:copy --expect-root 5f0c...
    """
    limited = bool(type_names or entities or since is not None)
    expected = None if expect_root is None else _root(expect_root, limited)
    screen = Screen()
    with target.read() as log:
        point = log.point(at, None, clock)
        if point.cut.observed_until is not None:
            _print_to_stderr("by the observed clock every record counts: this is a full replay")
        with reading("Reading", "records") as progress:
            view = log.rebuild(
                point.cut,
                types=type_names or None,
                entities=entities or None,
                since=since,
                full=full,
                progress=progress,
            )
        source: Mapping[str, Any] = view.source
        for problem in source["fallbacks"]:
            _print_to_stderr(f"warning: {problem}")
        root = None if limited else view.root
        differs = expected is not None and root != expected
        if as_json:
            screen.json(rebuild_json(point, view, root))
            return int(differs)
        screen.point(point)
        screen.say(f"observations {view.observations:,}")
        screen.say(f"entities     {len(view):,}")
        if root is not None:
            screen.say(f"root         {root}", "bold")
        if expected is not None:
            screen.say(
                f"expected     {expected}: {'another' if differs else 'the same'}",
                "red" if differs else "green",
            )
        for line in _source_lines(source):
            screen.say(line)
    return int(differs)


def _root(given: str, limited: bool) -> str:
    root = given.strip().lower()
    if not ROOT.match(root):
        raise InputError(f"--expect-root {given!r:.80}: a root has 64 hexadecimal digits")
    if limited:
        raise InputError("--expect-root: a root is over all entities; leave out --type, --entity and --since")
    return root


def _source_lines(source: Mapping[str, Any]) -> list[str]:
    """Describe how the entities were rebuilt."""
    epochs = source["snapshot_epochs"]
    shown = ", ".join(f"{partition}={offset}" for partition, offset in list(epochs.items())[:EPOCHS_SHOWN])
    more = f" and {len(epochs) - EPOCHS_SHOWN} more" if len(epochs) > EPOCHS_SHOWN else ""
    replayed = f"replayed     {counted(source['replayed'], 'record')}"
    if source["apart"]:
        replayed += f", {counted(source['apart'], 'partition')} in separate processes"
    reopened = f"reopened     {counted(source['reopened'], 'entity', 'entities')}"
    if source["reopened"]:
        reopened += f", for which {counted(source['scanned'], 'record')} were scanned"
    return [f"started from {f'the epochs {shown}{more}' if epochs else 'nothing: a full replay'}", replayed, reopened]


def _print_to_stderr(text: str) -> None:
    print("refold:", printable(text), file=sys.stderr, flush=True)
