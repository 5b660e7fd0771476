"""Where the owner of a log listens, and who may talk there."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import struct
import tempfile
from pathlib import Path

from refold.avro.errors import StorageError

# A Unix socket's name has room for 108 bytes on Linux and 104 on macOS, its end included.
_NAME_BYTES_MAX = 100


def bind(path: Path) -> tuple[socket.socket, list[Path]]:
    """A listening socket for the log at `path`, and the files to remove at the end. For the lock's holder.

    What a former owner left is replaced. Where the log's path is too long, the socket stands in a folder of
    the user's own in the temporary folder, and PATH/owner.sock is a link to it. StorageError.
    """
    name = path / "owner.sock"
    try:
        place = name if _fits(name) else _short(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            place.unlink(missing_ok=True)
            listener.bind(os.fspath(place))
            # Nobody can connect before listen(), so nobody connects before this.
            place.chmod(0o600)
            if place != name:
                name.unlink(missing_ok=True)
                name.symlink_to(place)
            listener.listen(64)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise StorageError(f"{path}: the owner cannot listen for other processes: {error}") from error
    return listener, [place] if place == name else [name, place]


def locate(path: Path) -> str:
    """The name to connect to. FileNotFoundError if nobody ever listened."""
    name = path / "owner.sock"
    return os.fspath(name.readlink() if name.is_symlink() else name)


def is_same_user(connection: socket.socket) -> bool:
    """Whether the process at the other end runs as this user. Where none can ask, the file's mode must do."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", found)
    return bool(user == os.getuid())


def _short(path: Path) -> Path:
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:32] + ".sock"
    candidates = [Path(base) / f"refold-{os.getuid()}" for base in (tempfile.gettempdir(), "/tmp")]
    folder = next((each for each in candidates if _fits(each / name)), candidates[-1])
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise StorageError(f"{folder}: not a folder of this user alone (mode 0700); remove it, or set TMPDIR")
    return folder / name


def _fits(name: Path) -> bool:
    return len(os.fsencode(name)) <= _NAME_BYTES_MAX
