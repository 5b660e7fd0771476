"""Reads `.observations` as records with id and recorded_at; skips or refuses what is not an observation.

A record's key is its entity, its value the framed bytes, its header `refold-id` its id (32 bytes). For each record:
1. An offset with a verdict is skipped, wherever it is, and so is a record that is set aside (damaged.py).
2. Below the offset up to which the partition is decided, a worker has checked the record: its key and its header are
   trusted. Without the header the id is computed from the bytes.
3. Above that offset, the record is checked here by the worker's rules: the bytes decode with a schema of the log; the
   key is the observation's entity; the partition is the key's; the header, if there is one, is the observation's id;
   and the type is not held (streams/held_types.py). Anything else waits for a worker's verdict: reading stops there
   with NotAnswerable, which names that offset. A process checks each record once. Keys are compared without checking
   anything else, so one entity's records can be read although another entity's record waits for a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from refold.avro.errors import NotAnswerable, UndecodableError, UnknownWireId
from refold.avro.observation import ID_BYTES, Observation
from refold.avro.quarantine import OBSERVATIONS
from refold.avro.registry import Registry
from refold.streams.held_types import held
from refold.streams.log.kafka.deadletters import DecidedOffsets
from refold.streams.log.kafka.offsets import KafkaPartition
from refold.streams.log.kafka.producer import OutgoingRecord
from refold.streams.log.kafka.range_reader import LogReaders, RawRecord
from refold.streams.log.kafka.recorded_at import Times
from refold.streams.log.port import Record, hole
from refold.streams.partitioner import partition_of

ID = "refold-id"
KEY_SHOWN_BYTES = 200
HELD = "held"


class NoObservation(Exception):
    """A record is not an observation.

    Attributes:
        reason: The reason in a verdict; the message is a sentence.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def outgoing_observation(place: KafkaPartition, entity: str, observation_id: bytes, data: bytes) -> OutgoingRecord:
    """Return the record of an observation that is to be produced.

    Args:
        place: The partition of `.observations`.
        entity: `type/id`; the record's key.
        observation_id: Its id; the record's header.
        data: Its framed bytes; the record's value.
    """
    what = f"the observation {observation_id.hex()[:12]} of {entity}"
    return OutgoingRecord(place, entity.encode(), data, [(ID, observation_id)], what)


def checked_observation(
    registry: Registry, partition: int, partitions: int, raw: RawRecord
) -> tuple[Observation, bytes]:
    """Decode a record's observation.

    Args:
        registry: The log's definitions.
        partition: The record's partition.
        partitions: The log's number of partitions.
        raw: The record.

    Returns:
        The observation and its id.

    Raises:
        NoObservation: The record is not an observation; it has the reason.
        UnknownWireId: The record names a schema that is not known here yet.
    """
    try:
        observation, observation_id = registry.identified(raw.value or b"")
    except UnknownWireId:
        raise
    except UndecodableError as error:
        raise NoObservation("undecodable", str(error)) from error
    entity = observation.entity
    if raw.key != entity.encode():
        raise NoObservation("misplaced", f"{_key_words(raw.key)}, and it is an observation of {entity}")
    if partition_of(entity, partitions) != partition:
        raise NoObservation("misplaced", f"{entity} belongs in partition {partition_of(entity, partitions)}")
    id_header = raw.header(ID)
    if id_header is not None and id_header != observation_id:
        raise NoObservation("misidentified", f"its header {ID} is not its id, {observation_id.hex()}")
    problem = held(registry, observation.type)
    if problem is not None:
        raise NoObservation(HELD, f"{observation.type} is held: {problem}")
    return observation, observation_id


def entity_of(raw: RawRecord) -> str:
    """Return the entity that a record's key names; empty if it names none."""
    try:
        name = (raw.key or b"").decode()
    except UnicodeDecodeError:
        return ""
    return name if "/" in name and name.isprintable() else ""


def _key_words(key: bytes | None) -> str:
    """Describe a record's key in a sentence: as text if it is printable, else in hex."""
    if key is None:
        return "it has no key"
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    if not text.isprintable() or not text:
        return f"its key is the bytes {key[:KEY_SHOWN_BYTES].hex()}{'...' if len(key) > KEY_SHOWN_BYTES else ''}"
    return f"its key is {text[:KEY_SHOWN_BYTES]}{'...' if len(text) > KEY_SHOWN_BYTES else ''}"


class Records:
    """Reads the records of one log, up to given end offsets.

    Args:
        learn: Reads new records of `.schemas`.
    """

    def __init__(
        self, topic: str, times: list[Times], registry: Registry, decided: DecidedOffsets, reading: LogReaders,
        learn: Callable[[], None],
    ) -> None:  # fmt: skip
        self._topic = topic
        self._times = times
        self._registry = registry
        self._decided = decided
        self._reading = reading
        self._learn = learn
        self._looked_at = [0] * len(times)

    def read(self, partition: int, start: int, end: int) -> Iterator[Record]:
        """Yield the records with start <= offset < end, in order.

        Raises:
            NotAnswerable: a record is not an observation, and has no verdict yet.
            DamagedRecord: a decided record is damaged.
        """
        looked_at = self._looked_at
        for raw, recorded_at in self._timed(partition, start, end):
            yield self._record(partition, raw, recorded_at)
            if start <= looked_at[partition] <= raw.offset:
                looked_at[partition] = raw.offset + 1

    def read_with_holes(self, partition: int, start: int, end: int) -> Iterator[Record]:
        """As `read`, and yield a hole for each offset without an observation."""
        at, recorded_at = start, self._times[partition].below(start)
        for record in self.read(partition, start, end):
            yield from self._holes(partition, at, record.offset, recorded_at)
            yield record
            at, recorded_at = record.offset + 1, record.recorded_at
        yield from self._holes(partition, at, end, recorded_at)

    def _holes(self, partition: int, start: int, end: int, recorded_at: int) -> Iterator[Record]:
        """Yield the holes of a range without observations; its refused records have timestamps of their own."""
        if start >= end:
            return
        times = {
            raw.offset: raw.timestamp
            for raw in self._reading.records(KafkaPartition(self._topic, partition), start, end)
        }
        for offset in range(start, end):
            recorded_at = max(recorded_at, times.get(offset, 0))
            yield hole(partition, offset, recorded_at)

    def among(self, partition: int, names: Collection[str], end: int, start: int = 0) -> Iterator[Record]:
        """Yield the records of some entities with start <= offset < end, in order: one pass that compares keys.

        Args:
            partition: The partition of these entities.
            names: The entities, `TYPE/ID`.
            end: The offset after the last one.
            start: The first offset.
        """
        keys = {name.encode() for name in names}
        for raw, recorded_at in self._timed(partition, start, end):
            if raw.key in keys:
                yield self._record(partition, raw, recorded_at)

    def at(self, partition: int, offset: int, end: int) -> Record | None:
        """Return the record at an offset below `end`, or None."""
        return next(self.read(partition, offset, offset + 1), None) if offset < end else None

    def find(self, partition: int, observation_id: bytes, end: int, start: int = 0) -> Record | None:
        """Return the first record with an id and start <= offset < end, or None.

        One pass that compares headers, and decodes records without one.

        Args:
            partition: The partition to search.
            observation_id: 32 bytes.
            end: The offset after the last one.
            start: The first offset.
        """
        for raw, recorded_at in self._timed(partition, start, end):
            if raw.header(ID) in {None, observation_id}:
                record = self._record(partition, raw, recorded_at)
                if record.id == observation_id:
                    return record
        return None

    def _timed(self, partition: int, start: int, end: int) -> Iterator[tuple[RawRecord, int]]:
        """Yield every record without a verdict, and its recorded_at: the running maximum of all records' timestamps."""
        if start >= end:
            return
        times = self._times[partition]
        greatest = times.below(start)
        skipped, aside = self._decided.skipped(partition), self._registry.rulings.of(OBSERVATIONS, partition)
        for raw in self._reading.records(KafkaPartition(self._topic, partition), start, end):
            greatest = max(greatest, raw.timestamp)
            if raw.offset not in skipped and raw.offset not in aside:
                yield raw, greatest
        times.keep(end, greatest)

    def _record(self, partition: int, raw: RawRecord, recorded_at: int) -> Record:
        given = raw.header(ID)
        through = max(self._decided.through(partition), self._looked_at[partition])
        if raw.offset < through and given is not None and len(given) == ID_BYTES and raw.key and raw.value:
            try:
                return Record(partition, raw.offset, recorded_at, raw.key.decode(), given, raw.value)
            except UnicodeDecodeError:
                pass  # it is damaged: `_observed` reports that
        observation, observation_id = self._observed(partition, raw)
        return Record(partition, raw.offset, recorded_at, observation.entity, observation_id, raw.value or b"")

    def _observed(self, partition: int, raw: RawRecord) -> tuple[Observation, bytes]:
        try:
            try:
                return checked_observation(self._registry, partition, len(self._times), raw)
            except UnknownWireId:
                self._learn()
                return checked_observation(self._registry, partition, len(self._times), raw)
        except (NoObservation, UnknownWireId) as error:
            place = f"{partition}={raw.offset}"
            if raw.offset < self._decided.through(partition):
                raise self._registry.rulings.damaged(
                    OBSERVATIONS, partition, raw.offset, entity_of(raw),
                    f"it is not an observation ({error}), and has no verdict, although the workers have passed it",
                ) from error  # fmt: skip
            raise NotAnswerable(
                f"the record {place} of {self._topic} is not an observation ({error}), and no worker has recorded a "
                "verdict "
                f"on it yet; the nearest point that can be answered is before it, offset:{place}. A running `refold "
                "worker` will decide it"
            ) from error
