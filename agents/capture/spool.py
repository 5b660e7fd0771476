"""Exchanges that a proxy captured and no log has stored yet: a folder of files, one for each exchange.

    <folder>/lock             held by the process that writes here, as long as it lives
    <folder>/missed           how many exchanges were not stored, and why: 4096 bytes, written in place
    <folder>/key              the key under which idle sessions are found again (sessions.py), once there is one
    <folder>/<AT>.open        an exchange in progress; AT: microseconds since 1970, one exchange each
    <folder>/<AT>.whole       an exchange that has ended

1. `begin` is called when the request is known, `add` before a piece of the response is sent to the agent. Each is one
   write to the file. So everything that the agent got is in the file, whatever kills the process; a power cut may lose
   it.
2. `end` writes how it ended and renames the file.
3. The storing thread takes whole exchanges in the order of AT, in pauses of the traffic, and removes each file after
   the log has stored it durably.
4. A process that was killed leaves `.open` files. The process that takes the folder over (its lock is free) reads them
   as broken off.
5. The files hold `bytes_max` in all. An exchange that would exceed that, or that the disk refuses, is not stored, and
   is counted in `missed`. That file has its full size from the start, so a full disk has room for the count.
6. The count is recorded in the log as a run with an id that is in the file before. What is missed from then on is
   counted apart, under another id. So a process that is killed in between neither loses a count nor records one twice.

No file holds a credential: the caller has removed them.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from refold.agents.capture.exchange import Broken, Response
from refold.agents.journal.record import Plain, Recording
from refold.avro.errors import InputError
from refold.streams.durable import replace_file
from refold.streams.runtime_context import RuntimeContext

BYTES_MAX = 1 << 30
PAUSE_S = 0.02
BUSY_MAX_S = 0.2
"""While agents are served, the storing thread waits for a pause of PAUSE_S in their traffic, for BUSY_MAX_S at most:
both threads need the interpreter."""
BUSY_SHARE = 4
"""It does not wait once this share of the permitted bytes, 1/BUSY_SHARE, is in use."""
_MISSED_BYTES = 4096
_LENGTH = struct.Struct(">I")
# The frames of a file, in order.
_Pairs: TypeAlias = list[list[str]]
_REQUEST = tuple[Literal["request"], int, str, Any]
_REQUEST_BY = tuple[Literal["request"], int, str, Any, str]
_STEP = re.compile(r"[0-9A-Za-z._:-]{1,200}#[1-9][0-9]{0,9}")
_HEAD = tuple[str, _Pairs, str, int, _Pairs, int | float]
_PIECE = tuple[str, int | float, bytes]
_MESSAGE = tuple[str, int | float, bytes, bool]
_END = tuple[str, Literal["whole", "broken", "left", "none"], int | float, Broken | None, Any]


class MissedExchanges(msgspec.Struct):
    """Exchanges that were not kept.

    Attributes:
        id: The id of the run that reports them.
        first_at, last_at: When the first and the last of them were missed, in microseconds since 1970.
    """

    id: str = ""
    count: int = 0
    first_at: int = 0
    last_at: int = 0
    why: str = ""

    @property
    def text(self) -> str:
        """How many, and why."""
        return f"{self.count} {'exchange was' if self.count == 1 else 'exchanges were'} not kept: {self.why}"


_MISSED_FILE = MissedExchanges | tuple[MissedExchanges, MissedExchanges]


class SpooledExchange(NamedTuple):
    """One complete exchange.

    Attributes:
        at: When it began, in microseconds since 1970.
        failure: Why there was no response, as the agent's 502 said; None if there was one.
        by: The step of another run that records the exchange too, as RUN#N; "" if none said so.
    """

    path: Path
    at: int
    name: str
    request: Plain
    answer: Plain
    failure: Broken | None
    duration_ms: float
    by: str = ""


class Spool:
    """One process's folder. One thread writes exchanges, and another takes them."""

    def __init__(
        self, root: Path, runtime: RuntimeContext, bytes_max: int = BYTES_MAX, *, folder: Path | None = None
    ) -> None:
        """Open the folder of this process.

        Args:
            root: The folder in which each process has its own.
            runtime: Clock and ids.
            bytes_max: How much the files may hold in total.
            folder: The folder of a process that is gone, to be taken over.

        Raises:
            InputError: Another process has that folder.
        """
        self._runtime = runtime
        self.folder = folder or root / f"{runtime.now_micros() // 1_000_000}-{runtime.new_id()[:8]}"
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise InputError(f"{self.folder}: another process captures into it") from None
        self._missed_file = os.open(self.folder / "missed", os.O_RDWR | os.O_CREAT, 0o600)
        self._turn = threading.Lock()
        self._key = b""
        self._missed, self._recording = self._read_missed()
        self._bytes_max = bytes_max
        self._written_at = 0.0  # of the monotonic clock, seconds
        self._bytes = sum(each.stat().st_size for each in self._files("open", "whole"))
        self._last_at = max((int(each.stem) for each in self._files("open", "whole")), default=0)
        self.kept = threading.Event()
        """Set when there is something to store."""
        for left in self._files("open"):  # left by a process that is gone
            left.rename(left.with_suffix(".whole"))

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.folder.name

    def begin(self, name: str, request: Plain, began_at: int, by: str = "") -> SpoolWriter | None:
        """Begin an exchange whose request is known.

        Args:
            name: The name of the call.
            request: The request as it is recorded.
            began_at: When its request arrived, microseconds since 1970. If another exchange has that time, a later one
                is used, because the time identifies the exchange.
            by: The step of a run that records the exchange too, RUN#N; any other text is ignored.

        Returns:
            None if it cannot be stored, which is counted.
        """
        with self._turn:
            self._last_at = at = max(began_at, self._last_at + 1)
            if self._bytes >= self._bytes_max:
                self._miss(f"the spool {self.folder} has its {self._bytes_max} bytes, and the log takes none")
                return None
        spooling = SpoolWriter(self, self.folder / f"{at}.open")
        spooling.write(["request", at, name, request, *([by] if _STEP.fullmatch(by) else ())])
        return spooling

    def wait_for_pause(self, is_ending: Callable[[], bool]) -> None:
        """Wait until agents got nothing for PAUSE_S, at most BUSY_MAX_S; not at all if the spool fills up.

        Args:
            is_ending: Whether to stop waiting.
        """
        until = time.monotonic() + BUSY_MAX_S
        while self._bytes < self._bytes_max // BUSY_SHARE and not is_ending():
            now = time.monotonic()
            left = min(self._written_at + PAUSE_S, until) - now
            if left <= 0:
                return
            time.sleep(left)

    def whole(self) -> Iterator[Path]:
        """Yield the exchanges that ended, oldest first."""
        yield from sorted(self._files("whole"))

    def read(self, path: Path) -> SpooledExchange | None:
        """Read one of the exchanges.

        Returns:
            None if not even its request is complete.

        Raises:
            InputError: The file is damaged.
        """
        return read_exchange(path)

    def set_aside(self, path: Path, why: str) -> None:
        """Keep the file of an exchange that cannot be stored, as `<AT>.refused`, and count it as missed."""
        path.rename(path.with_suffix(".refused"))
        self.miss(why)

    def stored(self, path: Path) -> None:
        """Remove the file of an exchange that the log has stored."""
        size = path.stat().st_size
        path.unlink()
        with self._turn:
            self._bytes -= size

    def miss(self, why: str) -> None:
        """Count an exchange that is not kept, with the reason."""
        with self._turn:
            self._miss(why)

    def missed(self) -> MissedExchanges:
        """Return what is to be recorded as missed: the same until `missed_stored`, whatever is missed meanwhile."""
        with self._turn:
            if not self._recording.count and self._missed.count:
                self._recording, self._missed = self._missed, MissedExchanges()
                self._write_missed()
            return msgspec.structs.replace(self._recording)

    def missed_stored(self) -> None:
        """Note that the log has recorded what `missed` returned."""
        with self._turn:
            self._recording = MissedExchanges()
            self._write_missed()

    def key(self, *, make: bool) -> bytes:
        """Return the folder's key, durable; empty if there is none and none is to be made."""
        path = self.folder / "key"
        if not self._key and path.exists():
            self._key = path.read_bytes()
        if not self._key and make:
            self._key = self._runtime.new_id().encode()
            replace_file(path, self._key.decode())
        return self._key

    def close(self) -> None:
        """Release the folder, and remove it if it is empty."""
        with self._turn:
            is_missing = self._missed.count or self._recording.count
            is_empty = not is_missing and not any(self._files("open", "whole"))
        if is_empty:
            for name in ("missed", "lock", "key"):
                (self.folder / name).unlink(missing_ok=True)
            with suppress(OSError):
                self.folder.rmdir()
        os.close(self._missed_file)
        os.close(self._lock)

    def _files(self, *kinds: str) -> list[Path]:
        return [each for each in self.folder.iterdir() if each.suffix[1:] in kinds and each.stem.isdecimal()]

    def _grew(self, size: int) -> None:
        self._written_at = time.monotonic()
        with self._turn:
            self._bytes += size

    def _count_end(self, lost: str | None, size: int) -> None:
        with self._turn:
            if lost is not None:
                self._bytes -= size
                self._miss(lost)
        self.kept.set()

    def _miss(self, why: str) -> None:
        now = self._missed
        at = self._runtime.now_micros()
        now.id, now.count, now.last_at, now.why = now.id or self._runtime.new_id(), now.count + 1, at, why[:200]
        now.first_at = now.first_at or at
        self._write_missed()
        self.kept.set()

    def _write_missed(self) -> None:
        data = msgspec.json.encode([self._missed, self._recording])
        with suppress(OSError):  # the count is also in memory
            os.pwrite(self._missed_file, data.ljust(_MISSED_BYTES), 0)

    def _read_missed(self) -> tuple[MissedExchanges, MissedExchanges]:
        """Return what was counted, and what was being recorded. Earlier versions wrote only the first."""
        try:
            found = msgspec.json.decode(os.pread(self._missed_file, _MISSED_BYTES, 0), type=_MISSED_FILE)
        except (msgspec.DecodeError, ValueError):
            found = (MissedExchanges(), MissedExchanges())
            os.pwrite(self._missed_file, msgspec.json.encode(found).ljust(_MISSED_BYTES), 0)
        counted, recording = (found, MissedExchanges()) if isinstance(found, MissedExchanges) else found
        if counted.count and not counted.id:
            counted.id = self._runtime.new_id()
        return counted, recording


class SpoolWriter:
    """One exchange that is being written to the spool."""

    def __init__(self, spool: Spool, path: Path) -> None:
        self._spool = spool
        self._path = path
        self._size = 0
        self._file = -1
        self._lost: str | None = None
        self._is_ended = False
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        except OSError as error:
            self._lose(error)

    def head(self, sent: list[list[str]], http: str, status: int, headers: list[list[str]], at_ms: float) -> None:
        """Begin the response.

        Args:
            sent: The request's headers that are kept.
            http: The version of HTTP.
            status: The status.
            headers: The response's headers that are kept.
            at_ms: When its head arrived, milliseconds after the request.
        """
        self.write(["head", sent, http, status, headers, at_ms])

    def add(self, data: bytes, at_ms: float) -> None:
        """Add a piece of the response's body."""
        if data:
            self.write(["piece", at_ms, data])

    def message(self, data: bytes, at_ms: float, *, is_binary: bool) -> None:
        """Add a message of a WebSocket.

        Args:
            data: The message.
            at_ms: When it arrived, milliseconds after the request.
            is_binary: Whether it is a binary message, not a text message.
        """
        self.write(["message", at_ms, data, is_binary])

    def end(self, end: str, duration_ms: float, error: Broken | None = None, *, encoding: Plain = None) -> None:
        """Record how the exchange ended; only the first call counts.

        Args:
            end: As in an exchange, or "none" if there was no response.
            duration_ms: How long it took, milliseconds.
            error: How the connection broke, if it did.
            encoding: The note about an encoding that could not be decoded.
        """
        if self._is_ended:
            return
        self.write(["end", end, duration_ms, error, encoding])
        self._is_ended = True
        if self._lost is None:
            try:
                self._path.rename(self._path.with_suffix(".whole"))
            except OSError as problem:
                self._lose(problem)
        if self._file >= 0:
            os.close(self._file)
        if self._lost is not None:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
        self._spool._count_end(self._lost, self._size)

    def write(self, frame: list[Any]) -> None:
        """Write one frame, with one system call."""
        if self._lost is not None or self._is_ended:
            return
        try:
            data = msgspec.msgpack.encode(frame)
        except (ValueError, OverflowError, RecursionError) as error:  # half of a surrogate pair, a number over 64 bits
            self._lost = f"the spool cannot hold a value: {error}"
            return
        data = _LENGTH.pack(len(data)) + data
        try:
            while data:
                done = os.write(self._file, data)
                self._size += done
                self._spool._grew(done)
                data = data[done:]
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        self._lost = f"the spool cannot be written: {error.strerror or error}"


def free_folders(root: Path, own: Path) -> Iterator[Path]:
    """Yield the folders of processes that are gone."""
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        if folder == own or not (folder / "lock").exists():
            continue
        try:
            lock = os.open(folder / "lock", os.O_RDWR)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        finally:
            os.close(lock)
        yield folder


def read_exchange(path: Path) -> SpooledExchange | None:
    """Read an exchange's file.

    Returns:
        The exchange; None if not even its request is complete.

    Raises:
        InputError: The file is damaged, as after a power cut.
    """
    try:
        return _read(path)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: the file is damaged: {error}") from None


def _frames(path: Path) -> Iterator[list[Any]]:
    """Yield the frames of a file. The last one may be cut off, if its process was killed."""
    with path.open("rb") as file:
        left = os.fstat(file.fileno()).st_size
        while len(head := file.read(_LENGTH.size)) == _LENGTH.size:
            (length,) = _LENGTH.unpack(head)
            left -= _LENGTH.size + length
            if left < 0:
                return
            yield msgspec.msgpack.decode(file.read(length), type=list[Any])


def _read(path: Path) -> SpooledExchange | None:
    frames = _frames(path)
    first = next(frames, None)
    if first is None:
        return None
    at, name, request, by = (*msgspec.convert(first, _REQUEST_BY if len(first) == 5 else _REQUEST)[1:], "")[:4]
    response: Response | None = None
    end, duration_ms, encoding = "broken", 0.0, None
    error: Broken | None = Broken("ProxyEnded", "the proxy was killed while the response came")
    for frame in frames:
        kind = frame[0] if frame else ""
        if kind == "head":
            _, sent, http, status, headers, at_ms = msgspec.convert(frame, _HEAD)
            response, duration_ms = Response(sent, http, status, headers, at_ms), at_ms
        elif kind == "piece" and response is not None:
            _, duration_ms, data = msgspec.convert(frame, _PIECE)
            response.add(data, duration_ms)
        elif kind == "message" and response is not None:
            _, duration_ms, data, is_binary = msgspec.convert(frame, _MESSAGE)
            response.add_message(data, duration_ms, is_binary=is_binary)
        elif kind == "end":
            _, end, duration_ms, error, encoding = msgspec.convert(frame, _END)
    if response is None:
        failure = error or Broken("NoResponse", "there was no response")
        return SpooledExchange(path, at, name, request, None, failure, duration_ms, by)
    answer = response.answer(end, error)
    if encoding is not None:
        answer["encoding"] = encoding
    return SpooledExchange(path, at, name, request, answer, None, duration_ms, by)


def spool_of(recording: Recording) -> str:
    """Return the name of the folder from which a captured run was made; "" if it is not one."""
    captured = recording.metadata.get("capture")
    return str(captured.get("spool", "")) if isinstance(captured, dict) else ""
