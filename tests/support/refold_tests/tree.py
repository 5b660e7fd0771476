"""Where things stand in a checkout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("avro", "reducers", "streams", "agents", "sinks", "explorer")


def shipped_files(root: Path = ROOT) -> Iterator[str]:
    """Every file of the import package, as its path in a wheel: `refold/avro/ids.py`."""
    package = root / "src" / "refold"
    for base in (package, *(package / folder for folder in FOLDERS)):
        # rglob does not follow links: each folder is walked once, from its own link.
        for path in base.rglob("*"):
            parts = path.relative_to(package).parts
            hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
            if path.is_file() and not hidden and path.suffix != ".pyc":
                yield "/".join(("refold", *parts))
