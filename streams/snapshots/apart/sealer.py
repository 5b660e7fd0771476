"""Sealing epochs in a process of its own, so that it takes nothing of the time in which this one folds.

1. While tables are small, or this process has one core alone, seal here: starting another costs more.
2. Else start one (child.py), once. Tell it where the table stands, and answer what it asks of the view and the store
   until the epoch is sealed (talk.py): the log and the table have one owner, and that is this process.
3. What the store or the view raises here is raised here again when the other gave up for it.
4. A process that could not be started, ends or fails by itself is not started again: abandon what it wrote of the
   epoch, and seal here from then on.
It ends when this process is gone, for its socket ends then, or is killed by `stop`.
"""

from __future__ import annotations

import logging
import pickle
import subprocess
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from multiprocessing.connection import Pipe
from typing import Any

from refold.avro.errors import CorruptionError, StorageError
from refold.streams import interpreter
from refold.streams.snapshots.apart.talk import DONE, FAILED, PART_BYTES, Answer, Asked, Elsewhere
from refold.streams.snapshots.manifest import Manifest
from refold.streams.snapshots.seal import Sealer
from refold.streams.snapshots.store import EpochWriter
from refold.streams.snapshots.table import TableView

# From so many on, in all partitions, sealing takes longer than starting a process.
ENTITIES_MIN = 20_000
_ENDING_S = 10.0
_MODULE = "refold.streams.snapshots.apart.child"

_log = logging.getLogger(__name__)


class _Failed(Exception):
    """The other process cannot seal; the message says why."""


class ApartSealer:
    """Seals the epochs of one log, one at a time, as `Sealer` does. `stop` may come from any thread."""

    def __init__(self, store: EpochWriter, log_id: bytes, partitions: int) -> None:
        self._store = store
        self._log_id = log_id
        self._partitions = partitions
        self._here: Sealer | None = Sealer(store, log_id, partitions)
        self._child: _Child | None = None
        self._may_start = interpreter.is_there() and interpreter.cores() > 1
        self._is_stopped = False
        self._entities: dict[int, int] = {}

    def seal(self, table: TableView) -> Manifest:
        """Seal the epoch a view stands at, durable on return."""
        self._entities[table.standing.epoch.partition] = table.standing.entities
        if self._child is None and self._may_start and sum(self._entities.values()) >= ENTITIES_MIN:
            self._start()
        if self._child is not None:
            try:
                self._sealed_by(self._child, table)
                return self._store.manifest(table.standing.epoch)
            except _Failed as failed:
                self._end()
                self._store.abandon(table.standing.epoch.partition)
                if self._is_stopped:
                    raise StorageError("the log is being closed") from failed
                self._say(failed)
        if self._here is None:
            self._here = Sealer(self._store, self._log_id, self._partitions)
        return self._here.seal(table)

    def _sealed_by(self, child: _Child, table: TableView) -> None:
        desk = _Desk(self._store, table)
        try:
            error = child.seal(desk)
        except BaseException:  # the two are out of step
            child.kill()
            raise
        finally:
            desk.close()
        if error is not None:
            raise error

    def stop(self) -> None:
        """End the process: who is sealing by it gets an error."""
        self._is_stopped = True
        child = self._child
        if child is not None:
            child.kill()

    def close(self) -> None:
        """`stop`, and wait until it is gone; nobody seals any more."""
        self.stop()
        self._end()

    def _start(self) -> None:
        self._may_start = False
        try:
            self._child = _Child(self._log_id, self._partitions)
            self._here = None
        except (OSError, _Failed) as error:
            self._say(error)
        if self._is_stopped:
            self.stop()

    def _end(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None

    def _say(self, why: Exception) -> None:
        _log.warning("snapshots are sealed beside the fold from now on, which slows it, for a process of their own "
                     "could not do it: %s", why)  # fmt: skip


class _Desk:
    """Answers what the process asks while it seals one view."""

    def __init__(self, store: EpochWriter, view: TableView) -> None:
        self.standing = view.standing
        self._store = store
        self._rows: dict[int, Iterator[Any]] = {}
        self._raised: dict[int, Exception] = {}
        self._numbers = count(1)
        self._begun: dict[str, Callable[..., Iterator[Any]]] = {
            "records": store.records, "groups": view.groups, "at": view.at,
        }  # fmt: skip
        self._calls: dict[str, Callable[..., Any]] = {
            "take": store.take,
            "end": store.end,
            "epochs": lambda partition: list(store.epochs(partition)),
            "manifest_bytes": store.manifest_bytes,
            "append": self._append,
            "abandon": store.abandon,
            "seal": store.seal,
            "members": view.members,
            "touched": lambda start: dict(view.touched(start)),
            "rows": self._begin,
            "more": self._more,
            "leave": self._leave,
        }

    def answer(self, name: str, arguments: Sequence[Any]) -> Answer:
        """What a call gives or raises."""
        try:
            return True, self._calls[name](*arguments)
        except Exception as error:  # to be raised here again, if the process gives up for it
            number = next(self._numbers)
            self._raised[number] = error
            is_storage, is_damage = isinstance(error, StorageError), isinstance(error, CorruptionError)
            return False, Elsewhere(number, str(error), is_storage, is_damage)

    def close(self) -> None:
        """Let go of the view and of what was read of it."""
        self._rows.clear()
        self._raised.clear()

    def raised(self, elsewhere: Elsewhere) -> Exception:
        """The error that the process gave up for."""
        if elsewhere.number:
            return self._raised[elsewhere.number]
        kind = CorruptionError if elsewhere.is_damage else StorageError if elsewhere.is_storage else _Failed
        return kind(elsewhere.text)

    def _append(self, partition: int, records: Sequence[bytes]) -> None:
        for data in records:
            self._store.append(partition, data)

    def _begin(self, number: int, name: str, arguments: Sequence[Any]) -> tuple[list[Any], bool]:
        self._rows[number] = iter(self._begun[name](*arguments))
        return self._more(number)

    def _more(self, number: int) -> tuple[list[Any], bool]:
        part: list[Any] = []
        size = 0
        for row in self._rows[number]:
            part.append(row)
            size += _size(row)
            if size >= PART_BYTES:
                return part, False
        del self._rows[number]
        return part, True

    def _leave(self, number: int) -> None:
        del self._rows[number]


def _size(row: tuple[int, bytes | list[tuple[bytes, bytes]]]) -> int:
    """The bytes of a record, or of the entities of a group."""
    found = row[1]
    return len(found) if isinstance(found, bytes) else sum([len(body) for _, body in found])


class _Child:
    """The process."""

    def __init__(self, log_id: bytes, partitions: int) -> None:
        self._socket, other = Pipe()
        with other:
            self._process = subprocess.Popen(
                interpreter.command(_MODULE, str(other.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                env=interpreter.environment(),
            )
        self._tell((log_id, partitions))

    def seal(self, desk: _Desk) -> Exception | None:
        """Have an epoch sealed; returns the error it was given up for. Raises _Failed where the process ended."""
        self._tell(desk.standing)
        while True:
            try:
                asked: Asked = self._socket.recv()
            except (EOFError, OSError) as error:
                raise _Failed(self._why_it_ended()) from error
            name, arguments = asked
            if name == DONE:
                return None
            if name == FAILED:
                return desk.raised(*arguments)
            self._tell(desk.answer(name, arguments))

    def _tell(self, told: object) -> None:
        try:
            self._socket.send(told)
        except ConnectionError:  # that it is gone is heard soon enough
            pass
        except (pickle.PicklingError, TypeError, AttributeError, OSError) as error:
            raise _Failed(f"it cannot be told {type(told).__name__}: {error}") from error

    def _why_it_ended(self) -> str:
        try:
            status = self._process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            return "it stopped answering"
        return f"it was ended by signal {-status}" if status < 0 else f"it ended with status {status}"

    def kill(self) -> None:
        """End it, without waiting. Once more is nothing."""
        self._process.kill()

    def end(self) -> None:
        """End it, and wait until it is gone."""
        self.kill()
        self._process.wait()
        self._socket.close()
