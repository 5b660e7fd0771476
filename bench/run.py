"""`make bench`: every figure refold promises, measured here and printed as one table.

python -P bench/run.py [--quick] [--folder DIR]
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
from pathlib import Path

from folding import Case, Figures, measure
from rich.console import Console
from rich.table import Table

from refold.reducers import fold

WIDTH = 130
CASES = [
    Case("uniform, 200 k entities", 400_000, 200_000, rebuild=True),
    Case("Zipf 1.1, 1 M entities", 400_000, 1_000_000, zipf=True, rebuild=True),
    Case("uniform, 200 k entities, memory", 2_000_000, 200_000),
]
QUICK = [Case(case.name, case.count // 10, case.entities, case.zipf, case.rebuild) for case in CASES[:2]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the observations, without the memory case")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where the logs are made")
    options = parser.parse_args()
    console = Console()
    console.width = max(console.width, WIDTH)
    build = "plain Python" if fold.__file__.endswith(".py") else "hot path compiled by mypyc"
    console.print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {build}, logs in {options.folder}")
    table = Table(title="Folding on the embedded log (one process, timeline, arrivals, ids and changes on)")
    for column in (
        "workload",
        "observations",
        "a second",
        "slowest tenth",
        "peak MB",
        "bytes each",
        "full rebuild, a second",
    ):
        table.add_column(column, justify="left" if column == "workload" else "right")
    for case in QUICK if options.quick else CASES:
        with console.status(case.name):
            figures = measure(case, options.folder)
        table.add_row(*_row(case, figures))
    console.print(table)


def _row(case: Case, figures: Figures) -> list[str]:
    rebuilt = f"{figures.rebuilt_per_second:,.0f}" if figures.rebuilt_per_second else "-"
    return [case.name, f"{case.count:,}", f"{figures.per_second:,.0f}", f"{figures.slowest_per_second:,.0f}",
            f"{figures.peak_mb:,.0f}", f"{figures.bytes_per_observation:,.0f}", rebuilt]  # fmt: skip


if __name__ == "__main__":
    main()
