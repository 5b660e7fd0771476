"""Handles the requests of the sealing process to the store and to the view of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

from refold.avro.errors import CorruptionError, StorageError
from refold.streams.snapshots.manifest import Manifest, read_manifest
from refold.streams.snapshots.seal import is_whole
from refold.streams.snapshots.sealing_process.channel import (
    Answer,
    PredictedAnswers,
    RemoteError,
    SealingFailed,
)
from refold.streams.snapshots.settings import SnapshotSettings
from refold.streams.snapshots.store import EpochWriter
from refold.streams.snapshots.table import TableView


class SealingRequests:
    """Answers the requests of the sealing process for one view.

    Args:
        settings: The settings of the sealing process.
    """

    def __init__(self, store: EpochWriter, view: TableView, settings: SnapshotSettings) -> None:
        self.epoch_state = view.epoch_state
        self._settings = settings
        self._store = store
        self._rows: dict[int, Iterator[Any]] = {}
        self._raised: dict[int, Exception] = {}
        self._numbers = count(1)
        self._begun: dict[str, Callable[..., Iterator[Any]]] = {
            "records": store.records, "groups": view.groups, "table": view.rows, "at": view.at,
        }  # fmt: skip
        self._calls: dict[str, Callable[..., Any]] = {
            "take": store.take,
            "end": store.end,
            "latest": store.latest,
            "manifest_bytes": store.manifest_bytes,
            "append": store.extend,
            "abandon": store.abandon,
            "members": view.members,
            "touched": lambda start: dict(view.touched(start)),
            "rows": self._begin,
            "more": self._next_part,
        }

    def predicted_answers(self) -> PredictedAnswers:
        """The answers to requests that every epoch makes, to send in advance. Those that raise now are left out, and
        requested again.
        """
        predicted: PredictedAnswers = {}

        def told_of(name: str, *arguments: Any) -> Any:
            is_given, found = self.answer(name, arguments, ())
            if is_given:
                predicted[name] = arguments, found
            return found if is_given else None

        own = self.epoch_state.epoch
        told_of("take", own.partition)
        told_of("end", own.partition)
        last = told_of("latest", own)
        if last is not None and told_of("manifest_bytes", last) is not None:
            try:
                whole = is_whole(self.epoch_state, self._store.manifest(last), self._settings)
            except StorageError:
                whole = True
            if not whole:
                told_of("touched", last.offset)
        return predicted

    def answer(self, name: str, arguments: Sequence[Any], left: Sequence[int]) -> Answer:
        """Return a call's result or error.

        Args:
            left: The results that are no longer needed.
        """
        for number in left:
            self._rows.pop(number, None)
        try:
            return True, self._calls[name](*arguments)
        except Exception as error:  # raised here again if the sealing process fails because of it
            number = next(self._numbers)
            self._raised[number] = error
            is_storage, is_damage = isinstance(error, StorageError), isinstance(error, CorruptionError)
            return False, RemoteError(number, str(error), is_storage, is_damage)

    def done(self, data: bytes, last_records: Sequence[bytes]) -> Manifest:
        """Seal the epoch with its last records and its manifest. Without a manifest the epoch already existed."""
        epoch = self.epoch_state.epoch
        if not data:
            return self._store.manifest(epoch)
        try:
            self._store.extend(epoch.partition, last_records)
            self._store.seal(epoch, data)
        except BaseException:
            self._store.abandon(epoch.partition)
            raise
        return read_manifest(data, epoch)

    def close(self) -> None:
        """Release the view and its open iterators."""
        for each in (self._rows, self._raised, self._begun, self._calls):
            each.clear()

    def raised(self, error_there: RemoteError) -> Exception:
        """The error that the sealing process failed with."""
        if error_there.number:
            return self._raised[error_there.number]
        kind = CorruptionError if error_there.is_damage else StorageError if error_there.is_storage else SealingFailed
        return kind(error_there.text)

    def _begin(self, number: int, name: str, arguments: Sequence[Any]) -> tuple[list[Any], bool]:
        self._rows[number] = iter(self._begun[name](*arguments))
        return self._next_part(number)

    def _next_part(self, number: int) -> tuple[list[Any], bool]:
        part: list[Any] = []
        size = 0
        for row in self._rows[number]:
            part.append(row)
            size += _size(row)
            if size >= self._settings.message_bytes:
                return part, False
        del self._rows[number]
        return part, True


def _size(row: tuple[int, bytes | list[tuple[bytes, bytes]]] | list[tuple[bytes, bytes]]) -> int:
    """The bytes of a record, or of the entities of a group or a batch."""
    found = row if isinstance(row, list) else row[1]
    return len(found) if isinstance(found, bytes) else sum([len(body) for _, body in found])
