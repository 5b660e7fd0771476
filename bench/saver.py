"""Compares RefoldSaver with SqliteSaver on one LangGraph thread: the time of each call, and the thread's size on disk.

peers/langgraph/thread.py is the thread. SqliteSaver runs in a separate environment. Both are durable on return:
SqliteSaver sets journal_mode=WAL and leaves synchronous at FULL, so SQLite syncs its log at each commit; refold syncs
once a call.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from peers.building import built_python
from peers.langgraph.thread import drive
from recording import LANGGRAPH, on_disk
from rich.console import Console
from rich.table import Table

from refold.langgraph import RefoldSaver
from refold.testing.processes import ServerMissing

STEPS = 500


@dataclass(frozen=True)
class Saved:
    """The figures of one checkpointer: milliseconds by name of a call (thread.py), and bytes in files."""

    took: dict[str, float]
    files: int


def by_refold(folder: Path, steps: int = STEPS) -> Saved:
    """Measure RefoldSaver, on an embedded log."""
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=folder))
    with RefoldSaver(f"file:{path}/log") as saver:
        took = drive(saver, steps)
    found = Saved(took, on_disk(path)[0])
    shutil.rmtree(path)
    return found


def by_sqlite(folder: Path, steps: int = STEPS) -> Saved:
    """Measure SqliteSaver. Raises ServerMissing if it cannot be installed."""
    python = built_python(LANGGRAPH)
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=folder))
    command = [str(python), str(LANGGRAPH / "saver.py"), str(path), str(steps)]
    # PYTHONSAFEPATH, which the Makefile sets, would hide thread.py, which is next to saver.py.
    environment = {**os.environ, "PYTHONPATH": str(LANGGRAPH)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    took = json.loads(done.stdout)
    found = Saved(took, on_disk(path)[0])
    shutil.rmtree(path)
    return found


def show(console: Console, folder: Path, share: int) -> None:
    """Print both, and the size of a thread with half the steps: twice the steps should take twice the space."""
    steps = STEPS // share
    table = Table(title=f"A thread of {steps:,} steps, its messages growing (goal: put within 1.5 times SqliteSaver)")
    table.add_column("kept by")
    for column in ("put p50, ms", "put p90", "put, last tenth", "put_writes p50", "get_tuple p50", "MB", "MB at half"):
        table.add_column(column, justify="right")
    for name, measure in (("refold, RefoldSaver", by_refold), ("LangGraph, SqliteSaver", by_sqlite)):
        with console.status(name):
            try:
                found, half = measure(folder, steps), measure(folder, steps // 2)
            except ServerMissing as missing:
                console.print(f"{name} was skipped: {missing}", markup=False)
                continue
        took = [f"{found.took[each]:.2f}" for each in ("put", "put_p90", "put_last", "writes", "get")]
        table.add_row(name, *took, *(f"{each.files / 1e6:.1f}" for each in (found, half)))
    console.print(table)
