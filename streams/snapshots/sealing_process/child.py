"""The sealing process, which seals epochs for its parent (channel.py describes the messages).

1. Its arguments are the file descriptors of its socket and of the shared memory. Termination signals are left to the
   parent. When the socket ends, the parent is done or gone: end at the next message.
2. Seal each epoch as the parent would (seal.py), on a store and a view that send requests to the parent. Appended
   records are sent in batches, before anything is read, and the last ones with the manifest, at the end.
3. If an epoch of another partition arrives instead of an answer, seal it at once, and then receive the answer.
"""

from __future__ import annotations

import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from refold.avro.errors import CorruptionError, StorageError
from refold.streams import runtime
from refold.streams.snapshots.chunk import Group, Member
from refold.streams.snapshots.manifest import Epoch
from refold.streams.snapshots.seal import Kept, Sealer
from refold.streams.snapshots.sealing_process.channel import (
    DONE,
    FAILED,
    Answer,
    Channel,
    PredictedAnswers,
    RemoteError,
    SealRequest,
)
from refold.streams.snapshots.settings import SnapshotSettings
from refold.streams.snapshots.store import EpochWriter
from refold.streams.snapshots.table import EpochState, Row, TableView


class _Raised(Exception):
    """The parent answered with an error."""

    def __init__(self, error_there: RemoteError) -> None:
        super().__init__(error_there.text)
        self.error_there = error_there


class _RaisedStorage(_Raised, StorageError):
    """The parent answered with a StorageError, which sealing may handle."""


class _RaisedDamage(_Raised, CorruptionError):
    """The parent answered with a CorruptionError."""


class _Asking:
    """Sends requests for one epoch to the parent.

    Args:
        seal: Seals another epoch that arrives meanwhile.
    """

    def __init__(self, other: Channel, predicted: PredictedAnswers, seal: Callable[[SealRequest], None]) -> None:
        self._other = other
        self._predicted = predicted
        self._seal = seal
        self._numbers = count()
        self._left: list[int] = []

    def ask(self, name: str, *arguments: Any) -> Any:
        """Return the answer, or the one that was sent in advance."""
        asked_for, found = self._predicted.pop(name, (None, None))
        if asked_for == arguments:
            return found
        left, self._left = self._left, []
        self._other.send((name, arguments, left, time.process_time()))
        while isinstance(message := self._other.receive(), SealRequest):
            self._seal(message)
        answer: Answer = message
        is_given, found = answer
        if is_given:
            return found
        raised = _RaisedDamage if found.is_damage else _RaisedStorage if found.is_storage else _Raised
        raise raised(found)

    def rows(self, name: str, *arguments: Any) -> Iterator[Any]:
        """Yield the rows of the answer, batch by batch."""
        number = next(self._numbers)
        part, was_last = self.ask("rows", number, name, arguments)
        try:
            yield from part
            while not was_last:
                part, was_last = self.ask("more", number)
                yield from part
        finally:
            if not was_last:
                self._left.append(number)  # sent with the next request, because this may run at any time


class _Store(EpochWriter):
    """The parent's store, as far as sealing needs it.

    Args:
        message_bytes: The approximate size of a batch of records.
    """

    def __init__(self, asking: _Asking, message_bytes: int) -> None:
        self._asking = asking
        self._message_bytes = message_bytes
        self._partition = -1
        self._appended: list[bytes] = []
        self._appended_bytes = 0
        self._end = 0
        self._manifest = b""

    def take(self, partition: int) -> None:
        self._asking.ask("take", partition)
        self._partition, self._end = partition, self._asking.ask("end", partition)

    def latest(self, until: Epoch) -> Epoch | None:
        found: Epoch | None = self._asking.ask("latest", until)
        return found

    def manifest_bytes(self, epoch: Epoch) -> bytes | None:
        found: bytes | None = self._asking.ask("manifest_bytes", epoch)
        return found

    def records(self, partition: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        self._send()
        return self._asking.rows("records", partition, start, end)

    def end(self, partition: int) -> int:
        return self._end

    def append(self, partition: int, data: bytes) -> None:
        self._appended.append(data)
        self._appended_bytes += len(data)
        self._end += 1
        if self._appended_bytes >= self._message_bytes:
            self._send()

    def _send(self) -> None:
        if self._appended:
            try:
                self._asking.ask("append", self._partition, self._take_unsent())
            except _Raised:  # some of them may have been appended
                self._end = self._asking.ask("end", self._partition)
                raise

    def _take_unsent(self) -> list[bytes]:
        """The records that were appended and not sent yet."""
        appended, self._appended, self._appended_bytes = self._appended, [], 0
        return appended

    def abandon(self, partition: int) -> None:
        self._take_unsent()
        self._asking.ask("abandon", partition)

    def seal(self, epoch: Epoch, data: bytes) -> None:
        self._manifest = data

    def sealed(self) -> tuple[bytes, list[bytes]]:
        """The epoch's manifest, empty if the epoch already existed, and its last records."""
        return self._manifest, self._take_unsent()


class _View(TableView):
    """The parent's view of a table."""

    def __init__(self, asking: _Asking, epoch_state: EpochState) -> None:
        self._asking = asking
        self.epoch_state = epoch_state

    def members(self, place: int) -> list[Member]:
        found: list[Member] = self._asking.ask("members", place)
        return found

    def groups(self) -> Iterator[Group]:
        return self._asking.rows("groups")

    def rows(self) -> Iterator[Sequence[Row]]:
        return self._asking.rows("table")

    def at(self, places: Sequence[int]) -> Iterator[Group]:
        return self._asking.rows("at", places)

    def touched(self, start: int) -> Mapping[bytes, bytes]:
        found: Mapping[bytes, bytes] = self._asking.ask("touched", start)
        return found


class _Sealing:
    """Seals the epochs that the parent requests; keeps the buckets of the last ones."""

    def __init__(self, other: Channel, log_id: bytes, partitions: int, settings: SnapshotSettings) -> None:
        self._other = other
        self._log_id = log_id
        self._partitions = partitions
        self._settings = settings
        self._kept: Kept = {}

    def next(self) -> None:
        """Receive and seal the next epoch."""
        try:
            begin = self._other.receive()
        except (EOFError, ConnectionError):
            raise
        except Exception as error:  # it cannot be unpickled here
            self._say(FAILED, _as_remote(error))
        else:
            self._seal(begin)

    def _seal(self, begin: SealRequest) -> None:
        asking = _Asking(self._other, begin.predicted, self._seal)
        store = _Store(asking, self._settings.message_bytes)
        sealer = Sealer(
            store, self._log_id, self._partitions, self._kept, from_ranges=True, settings=self._settings
        )  # fmt: skip
        try:
            manifest = sealer.seal(_View(asking, begin.epoch_state))
        except (EOFError, ConnectionError):
            raise
        except _Raised as raised:
            self._say(FAILED, raised.error_there)
        except Exception as error:  # any error: the parent seals instead
            self._say(FAILED, _as_remote(error))
        else:
            self._say(DONE, *store.sealed())
            if manifest.is_base:
                runtime.release_freed_memory()

    def _say(self, name: str, *arguments: Any) -> None:
        self._other.send((name, arguments, [], time.process_time()))


def _as_remote(error: Exception) -> RemoteError:
    """An error of this process."""
    if isinstance(error, StorageError):
        return RemoteError(0, str(error), is_storage=True, is_damage=isinstance(error, CorruptionError))
    return RemoteError(0, "".join(traceback.format_exception_only(error)).strip())


def main() -> None:
    """Serve until the socket ends."""
    runtime.limit_freed_memory()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    other = Channel(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
    with suppress(EOFError, ConnectionError):
        sealing = _Sealing(other, *other.receive())
        while True:
            sealing.next()


if __name__ == "__main__":
    main()
