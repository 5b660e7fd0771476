"""Decode the records of `.changes` for users' agents.

Agents get what every reader of the log gets. Records that no worker wrote are skipped, and so are those that an
administrator set aside (streams/log/kafka/damaged.py).
"""

from __future__ import annotations

from typing import Protocol

from refold.avro.errors import CorruptionError, UndecodableError
from refold.avro.quarantine import CHANGES
from refold.streams.changes import Change
from refold.streams.feed import ChangeReader
from refold.streams.log.kafka.fold_position import is_emitted
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.range_reader import Raw
from refold.streams.log.port import ChangeRecord


class RecordDecoder(Protocol):
    """Decodes the records of one `.changes`. For one thread."""

    def decode(self, raw: Raw, partition: int) -> Change | None:
        """The change in a record, or None where agents are not given the record.

        Raises:
            RefoldError: The record cannot be read.
        """

    def is_set_aside(self, partition: int, offset: int) -> bool:
        """Whether a record is set aside as of now."""


class ChangeDecoder:
    """The RecordDecoder of a log, which no other thread may use."""

    def __init__(self, log: KafkaLog) -> None:
        self._log = log
        self._reader = ChangeReader(log)

    def decode(self, raw: Raw, partition: int) -> Change | None:
        """Return the change in a record, or None if every reader skips it.

        The log is refreshed if the record cannot be decoded with the known definitions.

        Raises:
            DamagedRecord: The record cannot be read, and is not set aside.
        """
        if not is_emitted(raw) or self._is_known_aside(partition, raw.offset):
            return None
        content = raw.value or b""
        try:
            return self._reader.decode(content)
        except (UndecodableError, CorruptionError):  # of a type that was defined since, or set aside since
            if self.is_set_aside(partition, raw.offset):
                return None
        return self._reader.read(ChangeRecord(partition, raw.offset, content))

    def is_set_aside(self, partition: int, offset: int) -> bool:
        """Whether a record is set aside; refreshes the log."""
        self._log.refresh()
        return self._is_known_aside(partition, offset)

    def _is_known_aside(self, partition: int, offset: int) -> bool:
        return offset in self._log.registry.rulings.of(CHANGES, partition)
