"""The table of rebuilds, for any kind of log."""

from __future__ import annotations

from page import titled_table
from rebuilding import RUNS, RebuildFigures
from rich.table import Table


def rebuild_table(title: str) -> Table:
    """Return the table, without rows."""
    table = titled_table(
        f"{title}, root included (medians of {RUNS})",
        "workload", "observations", "folded a second", "--full, s", "--full, a second", "from snapshot, s",
        "times faster", "reading ranges, s", "times that", "ranges MB", "replayed", "reopened", "read for them",
        "filtered pass, s", "snapshot bytes each", "same root",
    )  # fmt: skip
    return table


def add_rebuild(table: Table, name: str, found: RebuildFigures) -> None:
    """Add a row."""
    table.add_row(
        name, f"{found.observations:,}", f"{found.folded_per_second:,.0f}", f"{found.full_s:.1f}",
        f"{found.full_per_second:,.0f}", f"{found.rebuilt_s:.2f}", f"{found.full_s / found.rebuilt_s:.1f}",
        f"{found.ranges_s:.2f}", f"{found.rebuilt_s / found.ranges_s:.1f}", f"{found.ranges_mb:,.0f}",
        f"{found.replayed:,}", f"{found.reopened:,}", f"{found.scanned:,}", f"{found.pass_s:.2f}",
        f"{found.snapshot_bytes_each:,.0f}", "yes" if found.same_root else "NO",
    )  # fmt: skip
