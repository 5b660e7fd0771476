"""The custom reducers that tests register, and a module that none registers."""

from __future__ import annotations

from pathlib import Path

REDUCERS = ",".join(
    [
        "refold_tests.histories:folded",
        "refold_tests.sample_types:picky",
        "refold_tests.sample_types:holding",
        "refold_tests.killing_reducer:mortal",
    ]
)
"""As the variable REFOLD_REDUCERS lists them."""

TRAP = """
import os
from pathlib import Path

(Path(__file__).parent / "imported").touch()


def folded(value, assertion):
    return "folded"


def marked(value, assertion):
    return "marked"


def unmarked(value, assertion):
    return "unmarked"


marked.refold_version = 2
"""


def trap(folder: Path) -> Path:
    """Write a module refold_trap; returns the file that is there once it was imported."""
    (folder / "refold_trap.py").write_text(TRAP)
    return folder / "imported"
