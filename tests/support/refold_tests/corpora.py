"""Test files from another project, in an archive."""

from __future__ import annotations

import tarfile
from pathlib import Path


def members(archive: Path, folder: str) -> dict[str, bytes]:
    """Return the files of a folder in an archive, by name."""
    found = {}
    with tarfile.open(archive) as opened:
        for member in opened:
            name = member.name.removeprefix("./")
            if member.isfile() and name.startswith(f"{folder}/"):
                file = opened.extractfile(member)
                assert file is not None
                found[name.removeprefix(f"{folder}/")] = file.read()
    return dict(sorted(found.items()))
