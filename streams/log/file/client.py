"""The client of a log's owner, for a process that appends through it.

Also the owner's socket: its path, and the check of its users.
"""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import struct
import tempfile
import time
from pathlib import Path
from threading import Lock

from refold.avro.errors import InputError, OwnerGone, OwnerSilent, StorageError
from refold.streams.deadline import Deadline
from refold.streams.log.file.framing import encode, is_last, receive, result_of
from refold.streams.log.file.limits import MESSAGE_BYTES_MAX

# A Unix socket's name has room for 108 bytes on Linux and 104 on macOS, its end included.
_NAME_BYTES_MAX = 100


def bind(path: Path) -> tuple[socket.socket, list[Path]]:
    """Return a listening socket for the log at `path`, and the files to remove at the end. For the holder of the lock.

    Replaces the socket of a former owner. If the log's path is too long, the socket is in a private folder of the user
    below the temporary folder, and PATH/owner.sock links to it. Raises StorageError.
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
    """Return the path to connect to.

    Raises:
        FileNotFoundError: No owner ever listened.
    """
    name = path / "owner.sock"
    return os.fspath(name.readlink() if name.is_symlink() else name)


def is_same_user(connection: socket.socket) -> bool:
    """Whether the process at the other end runs as this user. On systems that cannot tell, the file's mode protects the
    socket.
    """
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


KNOCK_PAUSE_S = 0.01


class Client:
    """Sends requests to the present owner of the log at `path`. Threads may share it; they take turns.

    After OwnerGone and OwnerSilent it is unknown whether the request was carried out, so send only idempotent requests.
    The next call connects again. So does a call that finds its owner gone before it sent the request.
    """

    def __init__(
        self, path: str | os.PathLike[str], timeout_s: float, message_bytes_max: int = MESSAGE_BYTES_MAX
    ) -> None:
        self._path = Path(path).resolve()
        self._timeout_s = timeout_s
        self._message_bytes_max = message_bytes_max
        self._lock = Lock()
        self._connection: socket.socket | None = None
        self.session = 0
        """The number of the connection that the last request used; another number may mean another owner."""

    def call(self, op: str, payload: object) -> object:
        """Send a request and return the owner's result.

        An error of the owner's handler is raised here.

        Raises:
            OwnerGone: No process listens or the owner ended meanwhile.
            OwnerSilent: There is no answer within `timeout_s` seconds.
            InputError: The request is too large or not CBOR.
        """
        message = encode([op, payload], self._message_bytes_max)
        deadline = Deadline(self._timeout_s)
        with self._lock:
            try:
                answer = self._ask(message, deadline)
            except (TimeoutError, BlockingIOError) as error:
                # A late answer must not be read as the answer to the next request.
                self._drop()
                raise OwnerSilent(
                    f"{self._path}: the process that owns this log did not answer in {self._timeout_s:g} s; "
                    "it may be stopped or overloaded: ask again, or end it and open the log here"
                ) from error
            except OSError as error:
                self._drop()
                raise self._gone() from error
            except InputError as error:
                # The owner's fault: the request is valid and may be repeated.
                self._drop()
                raise StorageError(f"{self._path}: what the log's owner answered is no message: {error}") from error
            except BaseException:
                # Also after an interrupt between request and answer: the answer would be read as that of the next
                # request.
                self._drop()
                raise
        return result_of(answer)

    def close(self) -> None:
        with self._lock:
            self._drop()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, message: bytes, deadline: Deadline) -> object:
        if self._connection is not None and _has_ended(self._connection):
            # Nothing was sent yet, so the request may go to the next owner.
            self._drop()
        connection = self._connection or self._connect(deadline)
        self._connection = connection

        def allow_the_rest() -> None:
            left_s = deadline.left_s
            if left_s == 0:
                raise TimeoutError
            connection.settimeout(left_s)

        try:
            allow_the_rest()
            connection.sendall(message)
        except (BrokenPipeError, ConnectionResetError):
            # The owner may have sent the reason before it closed the connection.
            pass
        answer = receive(connection, allow_the_rest, bytes_max=self._message_bytes_max)
        if answer is None:
            raise ConnectionResetError("the owner hung up")
        if is_last(answer):
            self._drop()
        return answer

    def _connect(self, deadline: Deadline) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(max(0.001, deadline.left_s))
            self._connect_when_ready(connection, deadline)
            if not is_same_user(connection):
                raise StorageError(f"{self._path}: another user's process listens at this log; end it")
        except BaseException:
            connection.close()
            raise
        self.session += 1
        return connection

    def _connect_when_ready(self, connection: socket.socket, deadline: Deadline) -> None:
        """Connect. If the owner's queue of connections is full, try again until the deadline."""
        while True:
            try:
                connection.connect(locate(self._path))
                return
            except BlockingIOError:
                if deadline.is_past:
                    raise
                time.sleep(KNOCK_PAUSE_S)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _gone(self) -> OwnerGone:
        return OwnerGone(f"{self._path}: no process owns this log, or it ended just now; open the log, or ask again")


def _has_ended(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
