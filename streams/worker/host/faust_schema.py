"""`.changes` for Faust: an entity as the key, a Change as the value.

What cannot be decoded is handed on as an Unreadable, not raised: Faust would log it, acknowledge it and go on. What
every reader of the log passes over is handed on as PASSED_OVER: records that no worker wrote, and those that an
administrator set aside (streams/log/kafka/damaged.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import faust
from faust.types import AppT, CodecArg
from faust.types.tuples import Message

from refold.avro.errors import CorruptionError, UndecodableError
from refold.avro.quarantine import CHANGES
from refold.streams.changes import Change
from refold.streams.feed import ChangeReader
from refold.streams.log.kafka.fold_position import is_emitted
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.range_reader import Headers, Raw
from refold.streams.log.port import ChangeRecord
from refold.streams.worker.host.faust_batches import UnreadableValue


class SkippedChange(NamedTuple):
    """A record of `.changes` that every reader passes over."""


PASSED_OVER: Final = SkippedChange()
Decode = Callable[[Raw, int], "Change | SkippedChange"]
"""What a record of a partition is to agents; raises where it cannot be read."""


class Unreadable(NamedTuple):
    """A record of `.changes` that is no change, and why."""

    error: Exception


class ChangesOf:
    """Decodes the changes of one log. For one thread, which has the log to itself."""

    def __init__(self, log: KafkaLog) -> None:
        self._log = log
        self._reader = ChangeReader(log)

    def __call__(self, raw: Raw, partition: int) -> Change | SkippedChange:
        """The change in a record, as far as the log is known; where it cannot be read, as of now.

        Raises:
            DamagedRecord: It cannot be read, and is not set aside.
        """
        if isinstance(raw.value, UnreadableValue):
            return self._of_batch(raw, raw.value.why, partition)
        if not is_emitted(raw) or self._is_aside(raw, partition):
            return PASSED_OVER
        content = raw.value or b""
        try:
            return self._reader.decode(content)
        except (UndecodableError, CorruptionError):  # of a type that was defined since, or set aside since
            self._log.refresh()
        if self._is_aside(raw, partition):
            return PASSED_OVER
        return self._reader.read(ChangeRecord(partition, raw.offset, content))

    def _of_batch(self, raw: Raw, why: str, partition: int) -> SkippedChange:
        """Pass over a record whose batch cannot be read; DamagedRecord where it is not set aside by now."""
        if not self._is_aside(raw, partition):
            self._log.refresh()
        if not self._is_aside(raw, partition):
            raise self._log.registry.rulings.damaged_batch(CHANGES, partition, raw.offset, why)
        return PASSED_OVER

    def _is_aside(self, raw: Raw, partition: int) -> bool:
        return raw.offset in self._log.registry.rulings.of(CHANGES, partition)


def raw_of_event(message: Message) -> Raw:
    """A record as Faust gives it, in the form that refold's readers take."""
    found = message.headers or ()
    headers: Headers = [*(found.items() if isinstance(found, Mapping) else found)]
    return Raw(message.offset, int((message.timestamp or 0) * 1000), message.key, message.value, headers)


class ChangeSchema(faust.Schema[Any, Any]):
    """Decodes the records of `.changes`."""

    def __init__(self, decode: Decode) -> None:
        super().__init__(key_serializer="raw", value_serializer="raw")
        self._decode = decode

    def loads_key(
        self, app: AppT, message: Message, *, loads: Callable[..., Any] | None = None, serializer: CodecArg = None
    ) -> str | Unreadable:
        """The entity, TYPE/ID."""
        try:
            return bytes(message.key or b"").decode()
        except UnicodeDecodeError as error:
            return Unreadable(error)

    def loads_value(
        self, app: AppT, message: Message, *, loads: Callable[..., Any] | None = None, serializer: CodecArg = None
    ) -> Change | SkippedChange | Unreadable:
        """The change."""
        try:
            return self._decode(raw_of_event(message), message.partition)
        except Exception as error:  # whatever it is, it is the agents' loop that ends the process
            return Unreadable(error)
