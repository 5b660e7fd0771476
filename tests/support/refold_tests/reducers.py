"""The custom reducers that tests register, and a module that nothing registers."""

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
"""The list, as in the variable REFOLD_REDUCERS."""

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
    """Write a module refold_trap; return the file that exists after it was imported."""
    (folder / "refold_trap.py").write_text(TRAP)
    return folder / "imported"
