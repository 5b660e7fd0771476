"""Compares RefoldSaver with SqliteSaver and PostgresSaver on one LangGraph thread: the time of each call, and the
thread's size on disk.

peers/langgraph/thread.py is the thread. The peers run in a separate environment. All are durable on return:
SqliteSaver sets journal_mode=WAL and leaves synchronous at FULL, so SQLite syncs its log at each commit; PostgreSQL
syncs its log too, as by default; refold syncs once a call. So a checkpoint survives a power cut with each of them once
`put` has returned. CPU time is that of the process that calls, which is not PostgreSQL's server. PostgreSQL's size is
that of its tables and indexes, without its log.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from new_process import in_new_process
from peers.building import built_python
from peers.langgraph.thread import drive
from recording import LANGGRAPH, on_disk
from rich.console import Console
from rich.table import Table

from refold.langgraph import RefoldSaver
from refold.testing.postgres import started
from refold.testing.processes import ServerMissing

STEPS = 500


@dataclass(frozen=True)
class Saved:
    """The figures of one checkpointer: milliseconds by name of a call (thread.py), and bytes in files."""

    took: dict[str, float]
    files: int


def by_refold(folder: Path, steps: int = STEPS) -> Saved:
    """Measure RefoldSaver, on an embedded log, in a process of its own, as the others are."""
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=folder))
    took = in_new_process(_drive_refold, f"file:{path}/log", steps)
    found = Saved(took, on_disk(path)[0])
    shutil.rmtree(path)
    return found


def _drive_refold(url: str, steps: int) -> dict[str, float]:
    with RefoldSaver(url) as saver:
        return drive(saver, steps)


def by_sqlite(folder: Path, steps: int = STEPS) -> Saved:
    """Measure SqliteSaver. Raises ServerMissing if it cannot be installed."""
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=folder))
    found = Saved(_of_peer("sqlite_saver.py", str(path), steps), on_disk(path)[0])
    shutil.rmtree(path)
    return found


def by_postgres(folder: Path, steps: int = STEPS) -> Saved:
    """Measure PostgresSaver, on a server of its own. Raises ServerMissing if one of them is missing."""
    del folder  # the server has its own
    built_python(LANGGRAPH)
    with started(is_durable=True) as server:
        found = _of_peer("postgres_saver.py", server.url, steps)
    return Saved(found["took"], found["bytes"])


def _of_peer(program: str, place: str, steps: int) -> Any:
    command = [str(built_python(LANGGRAPH)), str(LANGGRAPH / program), place, str(steps)]
    # PYTHONSAFEPATH, which the Makefile sets, would hide thread.py, which is next to the program.
    environment = {**os.environ, "PYTHONPATH": str(LANGGRAPH)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def show(console: Console, folder: Path, share: int) -> None:
    """Print all, and the size of a thread with half the steps: twice the steps should take twice the space."""
    steps = STEPS // share
    table = Table(title=f"A thread of {steps:,} steps, its messages growing (goal: put within 1.5 times SqliteSaver)")
    table.add_column("kept by")
    for column in (
        "put p50, ms",
        "put CPU",
        "put p90",
        "put, last tenth",
        "put_writes p50",
        "get_tuple p50",
        "MB",
        "MB at half",
    ):
        table.add_column(column, justify="right")
    savers = (("refold, RefoldSaver", by_refold), ("LangGraph, SqliteSaver", by_sqlite),
              ("LangGraph, PostgresSaver", by_postgres))  # fmt: skip
    for name, measure in savers:
        with console.status(name):
            try:
                found, half = measure(folder, steps), measure(folder, steps // 2)
            except ServerMissing as missing:
                console.print(f"{name} was skipped: {missing}", markup=False)
                continue
        took = [f"{found.took[each]:.2f}" for each in ("put", "put_cpu", "put_p90", "put_last", "writes", "get")]
        table.add_row(name, *took, *(f"{each.files / 1e6:.1f}" for each in (found, half)))
    console.print(table)
