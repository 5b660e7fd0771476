"""The process that seals (child.py), as the one that it seals for has it at hand."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable

from refold.streams import interpreter
from refold.streams.snapshots.apart.channel import Channel, shared_memory
from refold.streams.snapshots.apart.desk import Desk
from refold.streams.snapshots.apart.talk import DONE, FAILED, Asked, Begin, Failed
from refold.streams.snapshots.manifest import Manifest

# It says something for every piece that it reads or writes; hashing all of a large partition again takes seconds.
_SILENT_S = 600
# Who asks for these has much to read or to write.
_LONG = frozenset({"rows", "more", "append"})
_MODULE = "refold.streams.snapshots.apart.child"


class SealingProcess:
    """Started when this is made; ended by `end`. is_sound: it is where it is thought to be, and can go on."""

    def __init__(self, log_id: bytes, partitions: int) -> None:
        self.is_sound = True
        own, other = socket.socketpair()
        with other, shared_memory() as memory:
            self._channel = Channel(own, memory.fileno(), silent_s=_SILENT_S)
            try:
                self._process = self._started(other.fileno(), memory.fileno())
            except OSError:
                self._channel.close()
                raise
        self._tell((log_id, partitions))

    @staticmethod
    def _started(*given: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            interpreter.command(_MODULE, *map(str, given)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=given,
            env=interpreter.environment(),
        )

    def seal(self, desk: Desk, meanwhile: Callable[[], object]) -> Manifest:
        """Have an epoch sealed; raises what it was given up for, Failed where the process cannot.

        meanwhile: called now and then while that takes long; may have another partition's epoch sealed here.
        """
        self.is_sound = False
        self._tell(Begin(desk.standing, desk.first_answers()))
        while True:
            name, arguments, left = self._hear()
            if name in {DONE, FAILED}:
                break
            if name in _LONG:
                meanwhile()
                self.is_sound = False
            self._tell(desk.answer(name, arguments, left))
        if name == FAILED:
            error = desk.raised(*arguments)
            self.is_sound = not isinstance(error, Failed)
            raise error
        self.is_sound = True
        return desk.done(*arguments)

    def _hear(self) -> Asked:
        try:
            asked: Asked = self._channel.hear()
        except TimeoutError:
            raise Failed(f"it said nothing for {_SILENT_S} s") from None
        except (EOFError, OSError) as error:
            raise Failed(f"it {interpreter.how_it_ended(self._process)}") from error
        return asked

    def _tell(self, told: object) -> None:
        try:
            self._channel.tell(told)
        except ConnectionError:  # that it is gone is heard soon enough
            pass
        except Exception as error:  # whatever keeps a user's reducer here
            raise Failed(f"it cannot be told {type(told).__name__}: {error}") from error

    def kill(self) -> None:
        """End it, without waiting. Once more is nothing."""
        self._process.kill()

    def end(self) -> None:
        """End it, and wait until it is gone."""
        self.kill()
        self._process.wait()
        self._channel.close()
