"""Runs a command that may open sockets only to configured addresses, and records its other attempts.

1. The process installs a seccomp filter that passes each socket, connect, bind and sendto call, of it and of its
   children, to a supervisor (SECCOMP_RET_USER_NOTIF). Then it becomes the command. C libraries make the same calls as
   Python. io_uring, which would bypass them, is disabled.
2. The supervisor, a thread in this process, reads the address from the caller's memory. Unix and netlink sockets are
   local and allowed, and so are TCP connections to a configured address and TCP sockets bound to loopback. Everything
   else is denied with EACCES and recorded, even if the command ignores the error. Datagrams are not needed, so their
   sockets are denied.
3. When no process has the filter any more, the supervisor ends, and `denied` is complete.

It needs Linux 5.6 or newer on x86-64 or ARM, and no privileges. It works for root and in an unprivileged container,
unless the container forbids seccomp.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path
from typing import NamedTuple

from refold_tests.absent import without

Server = tuple[str, int]
END_S = 120

# Numbers from the kernel's headers: seccomp, pidfd_getfd, socket, connect, bind, sendto, and the architecture.
_CALLS = {
    "x86_64": (317, 438, 41, 42, 49, 44, 0xC000003E),
    "aarch64": (277, 438, 198, 203, 200, 206, 0xC00000B7),
}
_IO_URING_SETUP = 425
_NO_NEW_PRIVS, _SET_FILTER, _NEW_LISTENER = 38, 1, 1 << 3
_ALLOW, _NOTIFY, _ERRNO, _KILL = 0x7FFF0000, 0x7FC00000, 0x00050000, 0x80000000
_RECEIVE, _SEND, _IS_VALID, _CONTINUE = 0xC0502100, 0xC0182101, 0x40082102, 1
_NOTE = struct.Struct("=QIIiIQ6Q")
_ANSWER = struct.Struct("=QqiI")
_STEP = struct.Struct("=HBBI")
_LOAD, _IS, _RETURN = 0x20, 0x15, 0x06
_INET = (socket.AF_INET, socket.AF_INET6)
_CHILD = (
    "import sys; from refold_tests.confined import become; become(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])"
)


class Tried(NamedTuple):
    """A denied call: the process, and its target."""

    process: str
    call: str
    what: str


class Confined:
    """A running command. `denied` is complete once it has ended."""

    def __init__(self, process: subprocess.Popen[str], listener: int, allowed: Collection[Server]) -> None:
        self.process = process
        self.denied: list[Tried] = []
        self._allowed = frozenset(allowed)
        self._listener = listener
        self._thread = threading.Thread(target=self._supervise, daemon=True)
        self._thread.start()

    def end(self) -> tuple[int, str, str]:
        """Wait for the command; return its exit status and its output. If it hangs, its stacks are in the error."""
        try:
            out, err = self.process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)
            out, err = self.process.communicate(timeout=END_S)
            raise AssertionError(f"it had not ended after {END_S} s:\n{out}\n{err}") from None
        self._thread.join(60)
        assert not self._thread.is_alive(), "something that it started still runs"
        return self.process.returncode, out, err

    def _is_waiting(self, identity: int) -> bool:
        """Whether the caller still waits for the answer."""
        try:
            ioctl(self._listener, _IS_VALID, struct.pack("=Q", identity))
        except OSError:
            return False
        return True

    def _supervise(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        calls = _calls()
        while True:
            ((_, event),) = poll.poll()
            if not event & select.POLLIN:
                os.close(self._listener)  # no process has the filter any more
                return
            try:
                note = _NOTE.unpack(ioctl(self._listener, _RECEIVE, bytes(_NOTE.size)))
            except OSError:
                continue  # the caller was killed in the meantime
            identity, pid, _, number, _, _, *arguments = note
            try:
                found = _judged(pid, calls.index(number), arguments, self._allowed)
            except (OSError, struct.error) as error:
                # A signal may have ended the call, and with it the thread whose memory was to be read.
                if not self._is_waiting(identity):
                    continue
                found = Tried(_name(pid), "unreadable", str(error))
            if found is not None:
                self.denied.append(found)
            answer = (0, _CONTINUE) if found is None else (-errno.EACCES, 0)
            try:
                ioctl(self._listener, _SEND, _ANSWER.pack(identity, 0, *answer))
            except OSError:
                continue


@contextmanager
def confined(
    command: Sequence[object], allowed: Collection[Server], env: Mapping[str, str], folder: Path | None = None
) -> Iterator[Confined]:
    """Run a command that may connect only to `allowed`; it is ended after the block. Without kernel support: see
    absent.py.
    """
    calls = _calls()
    says, hears = os.pipe(), os.pipe()
    support = os.pathsep.join(each for each in sys.path if each)
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _CHILD, str(says[1]), str(hears[0]), *map(str, command)],
        env={**env, "PYTHONPATH": support, "PYTHONFAULTHANDLER": "1"}, cwd=folder, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=[says[1], hears[0]],
        start_new_session=True,
    )  # fmt: skip
    try:
        os.close(says[1])
        os.close(hears[0])
        said = os.read(says[0], 64).decode()
        if not said.isdigit():
            without(f"needs seccomp's notifications, and this kernel or container has none: {said}")
        pidfd = os.pidfd_open(process.pid)
        listener = _libc().syscall(calls[1], pidfd, int(said), 0)
        os.close(pidfd)
        if listener < 0:
            without(f"needs pidfd_getfd: {os.strerror(ctypes.get_errno())}")
        found = Confined(process, listener, allowed)
        os.write(hears[1], b"go")
        yield found
    finally:
        os.close(says[0])
        os.close(hears[1])
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def become(says: int, hears: int, command: list[str]) -> None:
    """Run in the process to be confined: install the filter, pass its listener to the supervisor, become the
    command.
    """
    libc = _libc()
    calls = _calls()
    steps = [(_LOAD, 0, 0, 4), (_IS, 1, 0, calls[6]), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    for number in calls[2:6]:
        steps += [(_IS, 0, 1, number), (_RETURN, 0, 0, _NOTIFY)]
    steps += [(_IS, 0, 1, _IO_URING_SETUP), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS), (_RETURN, 0, 0, _ALLOW)]
    program = b"".join(_STEP.pack(*step) for step in steps)
    held = ctypes.create_string_buffer(program)
    whole = struct.pack("@HP", len(steps), ctypes.addressof(held))
    listener = -1
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        listener = libc.syscall(calls[0], _SET_FILTER, _NEW_LISTENER, whole)
    os.write(says, (str(listener) if listener >= 0 else os.strerror(ctypes.get_errno())).encode())
    os.close(says)
    os.read(hears, 2)
    os.close(hears)
    os.execvp(command[0], command)


def _calls() -> tuple[int, ...]:
    found = _CALLS.get(platform.machine())
    if found is None or sys.platform != "linux":
        without(f"needs Linux on {' or '.join(_CALLS)}, here is {sys.platform} on {platform.machine()}")
    return found


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _judged(pid: int, call: int, arguments: Sequence[int], allowed: frozenset[Server]) -> Tried | None:
    """Return the call if it must be denied, None if it is allowed. call: its index in _CALLS."""
    if call == 2:
        family, kind = arguments[0], arguments[1] & 0xF
        if family in (socket.AF_UNIX, socket.AF_NETLINK) or (family in _INET and kind == socket.SOCK_STREAM):
            return None
        return Tried(_name(pid), "socket", f"family {family}, type {kind}")
    place, length = (arguments[4], arguments[5]) if call == 5 else (arguments[1], arguments[2])
    if not place:
        return None  # sendto without an address, on a connected socket
    family, address = _address(pid, place, min(length, 128))
    if family not in _INET:
        return None
    name = {3: "connect", 4: "bind", 5: "sendto"}[call]
    is_allowed = address[0] in ("127.0.0.1", "::1") if name == "bind" else address in allowed
    return None if is_allowed else Tried(_name(pid), name, f"{address[0]}:{address[1]}")


def _address(pid: int, place: int, length: int) -> tuple[int, Server]:
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(place)
        raw = memory.read(length)
    (family,) = struct.unpack_from("=H", raw)
    if family == socket.AF_INET:
        return family, (socket.inet_ntop(family, raw[4:8]), int.from_bytes(raw[2:4], "big"))
    if family == socket.AF_INET6:
        return family, (socket.inet_ntop(family, raw[8:24]), int.from_bytes(raw[2:4], "big"))
    return family, ("", 0)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "ended meanwhile"
