"""The tables of bench/recording.py."""

from __future__ import annotations

import os
import tempfile
import uuid
from pathlib import Path

import agent_waits
import recording
from peers.comparison import on_broker
from rich.console import Console
from rich.table import Table

from refold.testing.processes import ServerMissing

GOALS_US = {"file": 150, "kafka": 100}
STEPS_A_ROUND = 200


def show(console: Console, folder: Path, share: int) -> None:
    """Print the tables: what recording costs on each log, what a run takes on disk, how long its replay takes."""
    os.environ.setdefault("REFOLD_KEYS", f"file:{tempfile.mkdtemp(prefix='bench-keys-', dir=folder)}")
    steps = recording.STEPS // share
    title = f"Recording a step, the agent's own time (medians of {recording.ROUNDS} rounds)"
    table = _table(title, "log", "step", "wall, us", "p90, us", "CPU, us", "CPU, in json.dumps(state)", "goal, us")
    with console.status("recording on the embedded log"), tempfile.TemporaryDirectory(dir=folder) as place:
        _add(table, "file", f"file:{place}/log", STEPS_A_ROUND // share)
    with on_broker(console, "Recording on Kafka") as broker:
        if broker is not None:
            with console.status("recording on Kafka"), tempfile.TemporaryDirectory(dir=folder) as blobs:
                prefix = f"bench-agents-{uuid.uuid4().hex[:8]}"
                url = f"kafka://{broker.bootstrap}/{prefix}?blobs={Path(blobs).as_uri()}"
                _add(table, "kafka", url, STEPS_A_ROUND // share)
                broker.remove(prefix)
    console.print(table)
    _show_waits(console, folder, share)
    _show_storage(console, folder, steps)
    with console.status("replaying"):
        took = recording.replayed(folder, steps)
    console.print(
        f"Replay of {steps:,} steps with a model call each: {took.replay:.2f} s ({took.replay_cpu:.2f} s of CPU), of "
        f"which {took.load:.2f} s ({took.load_cpu:.2f} s) to load it (goal: 1 s for 1,000)"
    )


def _add(table: Table, log: str, url: str, count: int) -> None:
    for number, each in enumerate(recording.costs(url, count)):
        goal = "" if number else str(GOALS_US[log])
        table.add_row(log, each.name, f"{each.wall:,.0f}", f"{each.wall_p90:,.0f}", f"{each.cpu:,.0f}",
                      f"{each.encodings:.1f}", goal)  # fmt: skip


def _show_waits(console: Console, folder: Path, share: int) -> None:
    table = _table("What an agent waits for, on the embedded log", "what", "wall", "CPU", "beside it", "goal")
    with console.status("calls, writes, large answers and short runs"):
        call = agent_waits.call(folder, agent_waits.CALLS // share)
        write = agent_waits.write(folder, agent_waits.WRITES // share)
        stall = agent_waits.stall(folder)
        count = agent_waits.RUNS // share
        runs = agent_waits.short_runs(folder, count)
    table.add_row("a call in an open step", f"{call.wall:,.0f} us", f"{call.cpu:,.0f} us", "", "150 us")
    table.add_row(
        "a claimed write", f"{write.wall:.2f} ms", f"{write.cpu:.2f} ms",
        f"{write.syncs:.1f} syncs in its thread, {write.all_syncs:.1f} in all, of {write.sync:.2f} ms: "
        f"{write.wall / write.sync:.1f} times one", "2 syncs",
    )  # fmt: skip
    table.add_row(
        f"the loop, {agent_waits.ANSWERS} answers of 5 MB at once", f"{stall.recorded:,.0f} ms",
        f"{stall.loop:,.0f} ms", f"{stall.bare:,.0f} ms without a recording", "50 ms",
    )  # fmt: skip
    table.add_row(
        f"{count:,} runs of {agent_waits.RUN_STEPS} steps", f"{runs.wall:.1f} s", f"{runs.cpu:.1f} s",
        f"{runs.syncs:.1f} syncs a run", f"{8 / share:g} s",
    )  # fmt: skip
    console.print(table)


def _show_storage(console: Console, folder: Path, steps: int) -> None:
    title = f"A run of {steps:,} steps whose state grows by {recording.ADDED_BYTES:,} bytes a step, on disk (goal: 3)"
    table = _table(title, "kept by", "in files, times what was added", "in blocks (du)", "s")
    for name, measure in (
        ("refold, sealed", recording.stored),
        ("LangGraph, SqliteSaver", recording.stored_by_langgraph),
    ):
        with console.status(name):
            try:
                found = measure(folder, steps)
            except ServerMissing as missing:
                console.print(f"{name} was skipped: {missing}", markup=False)
                continue
        files, blocks = (f"{size / found.added:,.1f}" for size in (found.files, found.blocks))
        table.add_row(name, files, blocks, f"{found.seconds:.1f}")
    console.print(table)


def _table(title: str, first: str, second: str, *columns: str) -> Table:
    table = Table(title=title)
    table.add_column(first)
    table.add_column(second, justify="left" if second == "step" else "right")
    for column in columns:
        table.add_column(column, justify="right")
    return table
