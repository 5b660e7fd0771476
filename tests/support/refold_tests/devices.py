"""A small device that tests fill, to see how a real full disk behaves."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from refold_tests.absent import without


@contextmanager
def small_device(folder: Path) -> Iterator[Path]:
    """Mount a device of 16 MB at a new folder. Without the right to mount: see absent.py."""
    mount = shutil.which("mount")
    folder.mkdir()
    command = [str(mount), "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode:
        without("mounting a small device takes root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Fill a device. Removing the returned file frees the space."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(1 << 16)):
            pass
    return path
