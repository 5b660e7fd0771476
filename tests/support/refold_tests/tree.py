"""The paths in a checkout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("avro", "reducers", "streams", "agents", "sinks", "explorer")


def shipped_files(root: Path = ROOT) -> Iterator[str]:
    """Yield every shipped file, as its path in a wheel: `refold/avro/ids.py`."""
    package = root / "src" / "refold"
    yield from (path.name for path in (root / "src").glob("*.py"))
    for base in (package, *(package / folder for folder in FOLDERS)):
        # rglob does not follow links, so each folder is walked once, from its own link.
        for path in base.rglob("*"):
            parts = path.relative_to(package).parts
            hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
            if path.is_file() and not hidden and path.suffix != ".pyc":
                yield "/".join(("refold", *parts))
