"""Contents in a folder, by default PATH/blobs next to a `file:` log: <first two digits>/<SHA-256 in hex>.

A content is written to a temporary name, synced and renamed, so a name that exists holds the whole content. Any
process of the same user may write: equal names are equal contents. A folder belongs to one log.

Contents are removed when they have expired (agents/retention/). To distinguish these from lost contents, the file
`EXPIRED` lists their names, 32 bytes each. To remove contents:

1. Lock the folder: writers hold the lock shared, a remover holds it exclusively.
2. Keep the contents that were put since a given time, according to their files' modification times; putting an existing
   content updates it. The log may not have the observations that refer to them yet.
3. Add the names to EXPIRED and sync it, unless they are garbage, which nothing names. A torn end after a machine crash
   is cut off first.
4. Remove the files and sync their folders. If a process is killed in between, the next removal repeats it. An expired
content that is put again exists again.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from refold.avro.blob import is_expired
from refold.avro.errors import StorageError
from refold.streams.blobs.store import ContentStore, RemovalResult, StoredContent, in_batches, whole
from refold.streams.durable import sync_file, sync_path

EXPIRED = "EXPIRED"
# The longest time that a writer waits for a remover.
_REMOVED_AT_ONCE = 64
_NAME_BYTES = 32
_NAME_DIGITS = 2 * _NAME_BYTES


class BlobFolder(ContentStore):
    """Contents by SHA-256."""

    def __init__(self, folder: Path) -> None:
        self.url = folder.absolute().as_uri()
        self._folder = folder
        self._expired: set[bytes] = set()
        self._synced: set[Path] = set()

    def put(self, digest: bytes, content: bytes) -> None:
        target = self._path(digest)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if is_expired(digest, content):
                if not self.has(digest):
                    with self._locked(fcntl.LOCK_EX):
                        self._note([digest])
                return
            with self._locked(fcntl.LOCK_SH):
                if target.exists():
                    os.utime(target)
                else:
                    self._write(target, content)
        except OSError as error:
            raise StorageError(
                f"{target}: the content could not be stored ({error.strerror}); free disk, then repeat"
            ) from error

    def has(self, digest: bytes) -> bool:
        return self._path(digest).exists() or self.has_expired(digest)

    def has_expired(self, digest: bytes) -> bool:
        return digest in self._expired_names()

    def get(self, digest: bytes) -> bytes | None:
        try:
            content = self._path(digest).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"{self._path(digest)}: {error.strerror}") from error
        return whole(digest, content, str(self._path(digest)))

    def size(self, digest: bytes) -> int | None:
        found = self._stat(digest)
        return None if found is None else found.st_size

    def stored(self) -> Iterator[StoredContent]:
        try:
            for path in self._folder.glob(f"??/{'?' * _NAME_DIGITS}"):
                digest = bytes.fromhex(path.name)
                if (status := self._stat(digest)) is not None:
                    yield StoredContent(digest, status.st_size, status.st_mtime_ns // 1_000_000)
        except OSError as error:
            raise StorageError(f"{self._folder}: cannot be listed ({error.strerror})") from error

    def expired(self) -> Iterator[bytes]:
        return iter([*self._expired_names()])

    def remove(self, digests: Iterable[bytes], before_ms: int, *, is_expiry: bool = True) -> RemovalResult:
        contents = size = left = 0
        try:
            there = [each for each in digests if self._path(each).exists()]
            for some in in_batches(there, _REMOVED_AT_ONCE):
                with self._locked(fcntl.LOCK_EX):
                    files = {each: found for each in some if (found := self._stat(each)) is not None}
                    going = [each for each, found in files.items() if found.st_mtime_ns < before_ms * 1_000_000]
                    if is_expiry:
                        self._note(going)
                    for each in going:
                        self._path(each).unlink()
                    for folder in {self._path(each).parent for each in going}:
                        sync_path(folder)
                contents, left = contents + len(going), left + len(files) - len(going)
                size += sum(files[each].st_size for each in going)
        except OSError as error:
            raise StorageError(f"{self._folder}: contents could not be removed ({error.strerror}); repeat") from error
        return RemovalResult(contents, size, left)

    def _write(self, target: Path, content: bytes) -> None:
        target.parent.mkdir(exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix="new-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                sync_file(file)
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        sync_path(target.parent)
        # Also the parent folders, which the first contents create: the process that created them may not have synced
        # them.
        if target.parent not in self._synced:
            for folder in (self._folder, self._folder.parent):
                sync_path(folder)
            self._synced.add(target.parent)

    def _note(self, digests: Sequence[bytes]) -> None:
        """Step 3, under the lock."""
        known = self._expired_names()
        new = [each for each in dict.fromkeys(digests) if each not in known]
        if not new:
            return
        path = self._folder / EXPIRED
        with path.open("ab") as file:
            file.truncate(file.tell() // _NAME_BYTES * _NAME_BYTES)
            file.write(b"".join(new))
            sync_file(file)
        sync_path(self._folder)

    def _expired_names(self) -> set[bytes]:
        """The names in the file. It only grows, so reading continues after the last read position."""
        known = len(self._expired) * _NAME_BYTES
        try:
            with (self._folder / EXPIRED).open("rb") as file:
                if os.fstat(file.fileno()).st_size - known >= _NAME_BYTES:
                    file.seek(known)
                    data = file.read()
                    names = range(0, len(data) // _NAME_BYTES * _NAME_BYTES, _NAME_BYTES)
                    self._expired.update(data[start : start + _NAME_BYTES] for start in names)
        except FileNotFoundError:
            pass
        return self._expired

    def _stat(self, digest: bytes) -> os.stat_result | None:
        try:
            return self._path(digest).stat()
        except FileNotFoundError:
            return None

    @contextmanager
    def _locked(self, kind: int) -> Iterator[None]:
        handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(handle, kind)
            yield
        finally:
            os.close(handle)

    def _path(self, digest: bytes) -> Path:
        name = digest.hex()
        return self._folder / name[:2] / name
