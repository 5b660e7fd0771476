"""`refold plan`: what a load needs."""

from __future__ import annotations

import re
from dataclasses import asdict

import click

from refold.avro.errors import InputError
from refold.explorer.capacity.measured import RAW_BYTES, Measured, measured
from refold.explorer.capacity.model import SLOTS, USED_SHARE, Capacity, Demand, plan
from refold.explorer.cli.options import as_json
from refold.explorer.cli.output.fitting import TableColumn
from refold.explorer.cli.output.screen import Screen

_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800, "y": 31_536_000}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdwy])")
_SCALES = ("B", "kB", "MB", "GB", "TB", "PB")
COLUMNS = (TableColumn("what", "cyan"), TableColumn("needed", is_fixed=True), TableColumn("how it is found"))


@click.command("plan")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), required=True, metavar="N",
              help="Observations a second.")  # fmt: skip
@click.option("--entities", type=click.IntRange(min=1), required=True, metavar="N", help="How many entities there are.")
@click.option("--retain", default="365d", show_default=True, metavar="TIME",
              help="How long observations are kept: a number and s, m, h, d, w or y.")  # fmt: skip
@click.option(
    "--brokers", type=click.IntRange(min=1), default=3, show_default=True, metavar="N", help="Kafka's brokers."
)
@click.option("--standbys", type=click.IntRange(min=0), default=0, show_default=True, metavar="N",
              help="How many workers more keep each table.")  # fmt: skip
@click.option("--record-bytes", type=click.IntRange(min=1), default=RAW_BYTES, show_default=True, metavar="N",
              help="The size of an observation's record, with its key and id.")  # fmt: skip
@click.option("--worker-disk", type=click.FloatRange(min=0, min_open=True), default=4.0, show_default=True,
              metavar="TB", help="How much of a disk each worker has for tables.")  # fmt: skip
@as_json
def plan_(
    rate: float, entities: int, retain: str, brokers: int, standbys: int, record_bytes: int, worker_disk: float,
    as_json: bool,
) -> int:  # fmt: skip
    """Say what a load on Kafka needs: partitions, workers, memory, disks.

    It opens no log. The figures come from a model with measured constants (docs/reference/scale.md), of
    plain observations and workers with the native kernel. Workers are planned for half of what they can
    do, disks for exactly this load: leave room for peaks.

    Exits with 1 where one log cannot carry the load.

    \b
    Examples
      refold plan --rate 5000 --entities 2000000 --retain 365d --brokers 3
      refold plan --rate 20000 --entities 50000000 --standbys 1 --json
    """
    demand = Demand(rate, entities, _seconds(retain), brokers, standbys, record_bytes, worker_disk * 1e12)
    constants = measured()
    found = plan(demand, constants)
    screen = Screen()
    if as_json:
        screen.json(asdict(found))
    else:
        screen.table(COLUMNS, _rows(demand, found, constants))
        if found.is_over:
            screen.say(f"One log has at most {SLOTS:,} partitions: divide the entities among several logs.")
    return int(found.is_over)


def _rows(demand: Demand, found: Capacity, constants: Measured) -> list[list[str]]:
    one = f"{constants.thread_rate * USED_SHARE:,.0f} observations a second and {size_text(demand.worker_disk_bytes)}"
    return [
        ["partitions", f"{found.partitions:,}", "a power of two, at least 2 a worker and 8 in all"],
        ["workers", f"{found.workers:,}", f"for {one} each"],
        ["cores of workers", f"{found.cores:.1f}", f"{constants.cpu_us:.0f} us an observation, half used"],
        ["memory of a worker", size_text(found.worker_memory_bytes), "with its sealing process"],
        ["disks of workers", size_text(found.tables_bytes), f"all tables, {1 + demand.standbys} of each"],
        ["disk of a broker", size_text(found.broker_disk_bytes), "observations, changes and snapshots"],
        ["a broker writes", f"{size_text(found.broker_write_bytes)}/s", "with replicas"],
        ["snapshots", f"{size_text(found.snapshot_bytes)}/s", "sealed by all workers"],
        ["a rebuild", time_text(found.rebuild_s), "of all entities at the end, by one process"],
        ["a rebuild --full", time_text(found.replay_s), "from the first observation, by one process"],
    ]


def _seconds(text: str) -> float:
    """Parse a duration; return seconds.

    Raises:
        InputError: The text is not a duration above 0.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None or not float(found[1]):
        raise InputError(f"--retain {text}: a number above 0 and s, m, h, d, w or y, such as 365d")
    return float(found[1]) * _SECONDS[found[2]]


def size_text(size_bytes: float) -> str:
    """Format a size in the unit that gives it at most four digits."""
    scale = 0
    while size_bytes >= 9_999.5 and scale < len(_SCALES) - 1:
        size_bytes /= 1_000
        scale += 1
    return f"{size_bytes:,.0f} {_SCALES[scale]}"


def time_text(seconds: float) -> str:
    """Format a duration in seconds, minutes, hours or days."""
    for unit in ("d", "h", "m"):
        if seconds >= 2 * _SECONDS[unit]:
            return f"{seconds / _SECONDS[unit]:,.1f} {unit}"
    return f"{seconds:,.1f} s"
