"""The content-addressed folder beside a `file:` log: PATH/blobs/<first two digits>/<SHA-256 in hex>.

A content is written to a temporary name, synced and renamed, so a name that exists holds the whole content. Any
process of the same user may write: equal names are equal contents.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from refold.avro.errors import CorruptionError, StorageError


class BlobFolder:
    """Contents by SHA-256."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, digest: bytes, content: bytes) -> None:
        """Store a content, durable on return."""
        target = self._path(digest)
        if target.exists():
            return
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=target.parent, prefix="new-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                Path(temporary).replace(target)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
            _sync_folder(target.parent)
        except OSError as error:
            raise StorageError(
                f"{target}: the content could not be stored ({error.strerror}); free disk, then repeat"
            ) from error

    def get(self, digest: bytes) -> bytes | None:
        """A content, or None where there is none; CorruptionError where it is not what its name says."""
        try:
            content = self._path(digest).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"{self._path(digest)}: {error.strerror}") from error
        if hashlib.sha256(content).digest() != digest:
            raise CorruptionError(
                f"{self._path(digest)}: the content is not what its name says; restore it from a copy"
            )
        return content

    def _path(self, digest: bytes) -> Path:
        name = digest.hex()
        return self._folder / name[:2] / name


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
