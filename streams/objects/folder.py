"""A folder as an object store: a file is written under a temporary name, synced, and renamed or linked to its name."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from refold.avro.errors import StoreRefused, StoreUnavailable
from refold.streams.durable import sync_file, sync_path
from refold.streams.objects.port import ObjectInfo, Objects

SCRATCH = ".writing"
# Errors that an operator may fix while we wait.
_PASSING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EAGAIN})


class FolderObjects(Objects):
    """The files below a folder, which is created by the first put."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.url = self.root.as_uri()

    def __repr__(self) -> str:
        return f"<objects {self.url}>"

    def prepare(self) -> None:
        """Does nothing: a missing folder is an empty store."""

    def get(self, name: str) -> bytes | None:
        with self._asking(name):
            try:
                return self._path(name).read_bytes()
            except FileNotFoundError:
                return None

    def stat(self, name: str) -> ObjectInfo | None:
        with self._asking(name):
            try:
                return _info_of(name, self._path(name).stat())
            except FileNotFoundError:
                return None

    def names(self, folder: str) -> Iterator[ObjectInfo]:
        for each in self._listed(folder):
            if each.is_file(follow_symlinks=False):
                try:
                    found = each.stat()
                except FileNotFoundError:
                    continue
                yield _info_of(f"{folder}/{each.name}" if folder else each.name, found)

    def folders(self, folder: str) -> Iterator[str]:
        for each in self._listed(folder):
            if each.is_dir(follow_symlinks=False) and each.name != SCRATCH:
                yield each.name

    def put(self, name: str, data: bytes) -> None:
        with self._asking(name), self._aside(data) as path:
            self._stand(path, name)

    def put_file(self, name: str, path: Path) -> None:
        with self._asking(name):
            sync_path(path)
            self._stand(path, name)

    def create(self, name: str, data: bytes) -> bool:
        with self._asking(name), self._aside(data) as path:
            target = self._folder_of(name)
            try:
                os.link(path, target)
            except FileExistsError:
                return False
            self._sync_above(target)
            return True

    def copy(self, name: str, to: str) -> None:
        with self._asking(to):
            target = self._folder_of(to)
            target.unlink(missing_ok=True)
            os.link(self._path(name), target)
            self._sync_above(target)

    def delete(self, name: str) -> None:
        with self._asking(name):
            path = self._path(name)
            path.unlink(missing_ok=True)
            self._drop_empty(path.parent)

    def remove(self, folder: str) -> None:
        with self._asking(folder):
            for at, _, names in os.walk(self._path(folder), topdown=False):
                for name in names:
                    Path(at, name).unlink(missing_ok=True)
                self._drop_empty(Path(at))

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        with self._asking(SCRATCH):
            (self.root / SCRATCH).mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(dir=self.root / SCRATCH))
            handle = os.open(folder, os.O_RDONLY)
            fcntl.flock(handle, fcntl.LOCK_SH)  # as long as the folder is in use
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(handle)

    def tidy(self) -> None:
        """Remove what killed processes left unfinished."""
        with self._asking(SCRATCH):
            for folder in (self.root / SCRATCH).glob("*"):
                try:
                    handle = os.open(folder, os.O_RDONLY)
                except FileNotFoundError:
                    continue
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
                except BlockingIOError:
                    continue
                finally:
                    os.close(handle)

    def point(self, name: str, to: str) -> None:
        """Make a name a link to another, atomically and durably, and replace an existing link."""
        with self._asking(name):
            target = self.root / name
            if target.is_symlink() and target.readlink() == Path(to):
                return
        with self._asking(name), self.scratch() as folder:
            link = folder / "link"
            link.symlink_to(to)
            link.replace(target)
            sync_path(self.root)

    @contextmanager
    def _aside(self, data: bytes) -> Iterator[Path]:
        with self.scratch() as folder:
            path = folder / "new"
            with path.open("wb") as file:
                file.write(data)
                sync_file(file)
            yield path

    def _stand(self, path: Path, name: str) -> None:
        target = self._folder_of(name)
        path.replace(target)
        self._sync_above(target)

    def _folder_of(self, name: str) -> Path:
        target = self._path(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    def _sync_above(self, target: Path) -> None:
        """Sync also the parent folders, because the process that created them may not have synced them."""
        for folder in target.parents:
            sync_path(folder)
            if folder in (self.root.parent, self.root):
                sync_path(self.root.parent)
                break

    def _drop_empty(self, folder: Path) -> None:
        """Remove an empty folder, and parents that become empty."""
        while self.root in folder.parents:
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                break
            folder = folder.parent

    def _listed(self, folder: str) -> Iterator[os.DirEntry[str]]:
        with self._asking(folder):
            try:
                with os.scandir(self._path(folder)) as found:
                    listed = [*found]
            except (FileNotFoundError, NotADirectoryError):
                return
        yield from listed

    def _path(self, name: str) -> Path:
        return self.root / name

    @contextmanager
    def _asking(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            kind = StoreUnavailable if error.errno in _PASSING else StoreRefused
            raise kind(f"{self.root / name}: {error.strerror or type(error).__name__}") from error


def _info_of(name: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(name, status.st_size, status.st_mtime_ns // 1_000_000)
