"""Seals epochs in a separate process, so that sealing does not compete with the fold for the GIL.

1. While tables are small, or if this process may use only one core, seal here, because starting a process costs more.
2. Otherwise start a process (child.py), once. Send it the table's position, and answer its requests to the view and the
   store until the epoch is sealed (channel.py): the log and the table have one owner, which is this process. While it
   is busy, epochs of other partitions can be sealed.
3. If the sealing process failed because of an error of the store or the view, that error is raised here again.
4. A process that could not be started, ends, or fails is not started again: abandon the records of the epoch, and seal
   here from then on.
The sealing process ends when this process is gone, because its socket ends, or when `stop` kills it.

`SealingProcess` is the parent's handle of the process.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

from refold.avro.errors import StorageError
from refold.streams import child_process, runtime
from refold.streams.snapshots.manifest import Manifest
from refold.streams.snapshots.seal import Sealer
from refold.streams.snapshots.sealing_process.channel import (
    DONE,
    FAILED,
    Asked,
    Channel,
    SealingFailed,
    SealRequest,
    shared_memory,
)
from refold.streams.snapshots.sealing_process.request_handler import SealingRequests
from refold.streams.snapshots.settings import DEFAULT_SETTINGS, SnapshotSettings
from refold.streams.snapshots.store import EpochWriter
from refold.streams.snapshots.table import TableView

# It sends a message for every piece that it reads or writes; hashing a large partition again takes seconds.
_SILENT_S = 600
# After these requests the sealing process has much to read or to write.
_LONG = frozenset({"rows", "more", "append"})
_MODULE = "refold.streams.snapshots.sealing_process.child"


class SealingProcess:
    """The handle of a sealing process, which is started here and ended by `end`.

    Attributes:
        is_sound: Whether the process can be used for further epochs.
        used_s: Its processor time when it last sent a message, in seconds.
    """

    def __init__(self, log_id: bytes, partitions: int, settings: SnapshotSettings) -> None:
        self.is_sound = True
        self.used_s = 0.0
        own, other = socket.socketpair()
        with other, shared_memory() as memory:
            self._channel = Channel(own, memory.fileno(), silent_s=_SILENT_S)
            try:
                given = other.fileno(), memory.fileno()
                self._process = child_process.start(_MODULE, *given, pass_fds=given)
            except OSError:
                self._channel.close()
                raise
        self._send((log_id, partitions, settings))

    def seal(self, desk: SealingRequests, meanwhile: Callable[[], object]) -> Manifest:
        """Seal an epoch.

        Raises the error of the store or view that it failed with, or SealingFailed if the process failed.

        Args:
            meanwhile: Called from time to time during long work; may seal another partition's epoch by this process.
        """
        self.is_sound = False
        self._send(SealRequest(desk.epoch_state, desk.predicted_answers()))
        while True:
            name, arguments, left, self.used_s = self._hear()
            if name in {DONE, FAILED}:
                break
            if name in _LONG:
                meanwhile()
                self.is_sound = False
            self._send(desk.answer(name, arguments, left))
        if name == FAILED:
            error = desk.raised(*arguments)
            self.is_sound = not isinstance(error, SealingFailed)
            raise error
        self.is_sound = True
        return desk.done(*arguments)

    def _hear(self) -> Asked:
        try:
            asked: Asked = self._channel.receive()
        except TimeoutError:
            raise SealingFailed(f"it sent nothing for {_SILENT_S} s") from None
        except (EOFError, OSError) as error:
            raise SealingFailed(f"it {child_process.how_it_ended(self._process)}") from error
        return asked

    def _send(self, message: object) -> None:
        try:
            self._channel.send(message)
        except ConnectionError:  # the next receive will report that it is gone
            pass
        except Exception as error:  # for example a user's reducer that cannot be pickled
            raise SealingFailed(f"it cannot be told {type(message).__name__}: {error}") from error

    def kill(self) -> None:
        """Kill it, without waiting. Idempotent."""
        self._process.kill()

    def end(self) -> None:
        """End it, and wait until it is gone."""
        self.kill()
        self._process.wait()
        self._channel.close()


_log = logging.getLogger(__name__)


class ProcessSealer:
    """Seals the epochs of one log in one thread, as `Sealer` does. `stop` may be called from any thread."""

    def __init__(
        self, store: EpochWriter, log_id: bytes, partitions: int, after_base: Callable[[], None] = lambda: None, *,
        settings: SnapshotSettings = DEFAULT_SETTINGS,
    ) -> None:  # fmt: skip
        """Create it; the process starts with the first epoch.

        Args:
            store: Where epochs are written.
            log_id: The log's id, 16 bytes.
            partitions: The number of the log's partitions.
            after_base: Called after a base was sealed, which reads much.
            settings: Of sealing, in this process and in the separate one.
        """
        self._store = store
        self._after_base = after_base
        self._log_id = log_id
        self._partitions = partitions
        self._settings = settings
        self._here: Sealer | None = self._sealer()
        self._child: SealingProcess | None = None
        self._may_start = child_process.can_start() and runtime.cores() > 1
        self._is_stopped = False
        self._entities: dict[int, int] = {}

    def seal(self, table: TableView, meanwhile: Callable[[], object] = lambda: None) -> Manifest:
        """Seal the epoch of a view.

        Args:
            meanwhile: Called from time to time while a separate process seals it, if that takes long; may call this
                method for another partition.
        """
        manifest = self._sealed(table, meanwhile)
        if manifest.is_base:
            self._after_base()
        return manifest

    def _sealed(self, table: TableView, meanwhile: Callable[[], object]) -> Manifest:
        self._entities[table.epoch_state.epoch.partition] = table.epoch_state.entities
        is_large = sum(self._entities.values()) >= self._settings.process_entities_min
        if self._child is None and self._may_start and is_large:
            self._start()
        if self._child is not None:
            try:
                return self._sealed_by(self._child, table, meanwhile)
            except SealingFailed as failed:
                if self._is_stopped:
                    raise StorageError("the log is being closed") from failed
                self._done_without(failed)
        if self._here is None:
            self._here = self._sealer()
        return self._here.seal(table)

    def _sealer(self) -> Sealer:
        return Sealer(self._store, self._log_id, self._partitions, settings=self._settings)

    def _sealed_by(self, child: SealingProcess, table: TableView, meanwhile: Callable[[], object]) -> Manifest:
        desk = SealingRequests(self._store, table, self._settings)
        try:
            return child.seal(desk, meanwhile)
        finally:
            desk.close()
            if not child.is_sound:  # it is lost, or an interrupt stopped it in the middle of an epoch
                self._end()
                self._store.abandon(table.epoch_state.epoch.partition)

    @property
    def used_s(self) -> float:
        """The processor time of the sealing process, in seconds; 0 without one."""
        child = self._child
        return 0.0 if child is None else child.used_s

    def stop(self) -> None:
        """Kill the process: a thread that is sealing by it gets an error."""
        self._is_stopped = True
        child = self._child
        if child is not None:
            child.kill()

    def close(self) -> None:
        """`stop`, and wait until it is gone. Sealing is not possible afterwards."""
        self.stop()
        self._end()

    def _start(self) -> None:
        # Small logs need none of its imports.

        try:
            self._child = SealingProcess(self._log_id, self._partitions, self._settings)
            self._here = None
        except (OSError, SealingFailed) as error:
            self._done_without(error)
        if self._is_stopped:
            self.stop()

    def _end(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None

    def _done_without(self, why: Exception) -> None:
        if self._may_start:
            _log.warning("snapshots are sealed in this process from now on, which slows it: the sealing process "
                         "failed: %s", why)  # fmt: skip
        self._may_start = False
