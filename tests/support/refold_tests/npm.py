"""Programs from npm's registry that tests run. They are downloaded once into the user's cache and verified by
SHA-256.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import NamedTuple

from refold.testing.processes import cache_folder, locked
from refold_tests.absent import without


class NpmPackage(NamedTuple):
    """A package and its version. sha256: of its archive."""

    name: str
    sha256: str


AXE = NpmPackage("axe-core@4.14.1", "e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745")
OPENAI = NpmPackage("openai@6.49.0", "e48de0f4c5dbecebdeb864233f5ea49be07cd3e0ff3bd3e1e6745dc5e168cced")
TYPESCRIPT = NpmPackage("typescript@5.9.3", "10e108c9cf7d5f2879053dff18515fb405abf2ccef63eaaf017d9c571687a1d3")


def package_folder(package: NpmPackage) -> Path:
    """Return the folder of an unpacked package. Without npm the test is skipped; in CI it fails."""
    cache = cache_folder() / "npm"
    folder = cache / package.sha256[:16]
    with locked(cache / "lock"):
        if folder.exists():
            return folder / "package"
        npm = shutil.which("npm")
        if npm is None:
            without(f"npm is missing, with which {package.name} is fetched")
        packed = subprocess.run(
            [npm, "pack", "--silent", "--pack-destination", cache, package.name], check=True, stdout=subprocess.PIPE
        )
        archive = cache / packed.stdout.decode().split()[-1]
        assert hashlib.sha256(archive.read_bytes()).hexdigest() == package.sha256, package.name
        unpacked = folder.with_suffix(".part")
        shutil.rmtree(unpacked, ignore_errors=True)
        with tarfile.open(archive) as files:
            files.extractall(unpacked, filter="data")
        archive.unlink()
        unpacked.rename(folder)
    return folder / "package"
