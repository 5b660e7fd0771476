"""Damaged records of a log on Kafka: how readers handle them, and how an administrator sets them aside.

A record is damaged if its bytes are not those that were written, because of a disk or a broker. In `.observations` a
record is damaged if it is below the decided offset of its partition, has no verdict, and is not an observation by the
rules of records.py; above that offset a worker gives a verdict. In `.changes` a record is damaged if a worker wrote it,
by its headers, and it does not contain a change.

1. A reader that requires it raises DamagedRecord, with topic, partition, offset, reason, and the command that sets it
   aside.
2. `refold quarantine add` writes a ruling (quarantine_records.py): its authorisation in `.manifests`, its position in
   `.schemas`. A reader that has read `.schemas` up to that position skips the record, at every cut
   (avro/quarantine.py), and counts it. If a batch cannot be unpacked, all of its records are damaged, because the
   client can never return them. The ruling covers every offset of the batch, and a reader continues after the offsets
   that are set aside (UnreadableBatches). The entities of its records are unknown. A batch above the decided offset can
   be damaged too: a worker cannot give verdicts on records that it cannot read.
3. A table or an epoch that was made while the record was readable contains the record's effect. Each stores the offsets
   that it leaves out: a table in its position, an epoch in its manifest. If those below its own offset differ from the
   offsets set aside now, a worker makes the table again, and readers begin from another epoch, or from nothing.
4. A ruling emits no change. Changes that were emitted for the record stay in `.changes`: `verify` does not check the
   chain of that entity, and sinks read its type again.
5. Taking it back is another ruling, by the same steps: the record is required again. Tables and epochs that were made
   meanwhile leave it out, and are not used.
In the other topics only whole batches are treated as damaged.
6. A batch of `.snapshots`, of `.contents`, or of `.manifests` outside of partition 0 is skipped by every reader, and
   counted. Epochs are made again; a reader that requires a content raises an error that names it.
7. `.schemas`, `.deadletters` and partition 0 of `.manifests` are required, because a missing definition, verdict,
   marker or ruling changes answers. A reader stops, as in 1, and a ruling is made as in 2. In `.schemas` and
   `.manifests` the ruling is after the batch. So a reader that reaches an unreadable batch there reads ahead for
   rulings, past everything that cannot be read (rulings_ahead.py).
8. `.keys` is required by processes that seal and open values. A batch that is set aside may have destroyed any earlier
   key, so none of these is used any more (agents/keys/kafka.py). Readers of `.keys` read ahead for rulings, too,
   because they may run while a ruling is made.
If the process ends between these steps, some readers know the ruling and others do not yet. Lookups in workers' tables
are never used for an entity with a ruling, so a reader's answer does not depend on what the workers know.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from refold.avro.errors import CorruptionError
from refold.avro.quarantine import CHANGES, DEADLETTERS, KEYS, MANIFESTS, OBSERVATIONS, SCHEMAS, TOPICS, Rulings
from refold.streams.log.kafka.offsets import KafkaPartition
from refold.streams.log.kafka.topics import Topics
from refold.streams.log.port import Position, SetAside


class UnreadableBatches:
    """Decides where reading continues at a batch that cannot be unpacked. Thread-safe."""

    def __init__(
        self, topics: Topics, rulings: Rulings, ahead: Callable[[], Rulings] = Rulings, *, is_lenient: bool = False
    ) -> None:  # fmt: skip
        """Create it.

        Args:
            topics: The log's topics.
            rulings: The rulings that were read so far; kept up to date by the log.
            ahead: Returns all rulings, including those after a batch that cannot be read.
            is_lenient: Also skip required batches, except of observations and changes, for a process
                that sets them aside.
        """
        self._names = {
            topics.observations: OBSERVATIONS, topics.changes: CHANGES, topics.schemas: SCHEMAS,
            topics.manifests: MANIFESTS, topics.deadletters: DEADLETTERS, topics.keys: KEYS,
        }  # fmt: skip
        self._rulings = rulings
        self._ahead = ahead
        self._is_lenient = is_lenient
        self._unneeded = {topics.snapshots, topics.contents}
        self._lock = Lock()
        self._passed: dict[KafkaPartition, set[int]] = {}
        self._left: dict[KafkaPartition, int] = {}

    def is_aside(self, place: KafkaPartition, offset: int) -> bool:
        """Whether an offset is set aside."""
        name = self._names.get(place.topic)
        return name is not None and offset in self._rulings.of(name, place.partition)

    def is_needed(self, place: KafkaPartition) -> bool:
        """Whether a reader stops at a batch that is not set aside; otherwise it skips the batch (6)."""
        name = self._names.get(place.topic)
        if name in (OBSERVATIONS, CHANGES):
            return True
        is_passed = place.topic in self._unneeded or (name == MANIFESTS and place.partition > 0)
        return not is_passed and not self._is_lenient

    def pass_over(self, place: KafkaPartition, start: int, end: int) -> None:
        """Count skipped offsets.

        Args:
            place: The partition.
            start: The first offset.
            end: The offset after the last one.
        """
        with self._lock:
            self._passed.setdefault(place, set()).update(range(start, end))

    def passed_over(self) -> list[SetAside]:
        """The skipped records, by topic."""
        with self._lock:
            passed = {place: (len(offsets), min(offsets)) for place, offsets in self._passed.items()}
        return [
            SetAside(
                topic,
                sum(records for each, (records, _) in passed.items() if each.topic == topic),
                min(Position(each.partition, first) for each, (_, first) in passed.items() if each.topic == topic),
            )
            for topic in sorted({each.topic for each in passed})
        ]

    def after(self, place: KafkaPartition, first: int, wanted: int, why: str) -> int:
        """Return the first offset at or after `wanted` that is not set aside.

        Args:
            place: The partition.
            first: The batch's first offset.
            wanted: The next offset to read; in the batch, or before it.
            why: The client's error about the batch.

        Returns:
            An offset after `wanted`. It may still be in the batch.

        Raises:
            DamagedRecord: The next offset is not set aside.
            CorruptionError: The same, in a topic whose records cannot be set aside.
        """
        name = self._names.get(place.topic)
        if name is None:
            raise unreadable(place, first, why)
        aside = self._rulings.of(name, place.partition)
        begin = after = max(first, wanted)
        if begin not in aside and name in (SCHEMAS, MANIFESTS, KEYS):
            aside = self._ahead().of(name, place.partition)
        while after in aside:
            after += 1
        if after == begin:
            named = first if first not in aside else begin
            raise self._rulings.damaged_batch(name, place.partition, named, why)
        with self._lock:
            self._left[place] = max(after, self._left.get(place, 0))
        return after

    def left_out_to(self, place: KafkaPartition) -> int:
        """The offset after the last batch that was set aside and skipped; 0 without one."""
        with self._lock:
            return self._left.get(place, 0)


def unreadable(place: KafkaPartition, first: int, why: str) -> CorruptionError:
    """Return the error at a batch that cannot be read and is not set aside.

    Args:
        place: The partition.
        first: The batch's first offset.
        why: What the consumer reported.
    """
    return CorruptionError(
        f"{place.topic} {place.partition}={first}: the batch is damaged: it cannot be read ({why}). Restore the "
        "brokers' data"
    )


def set_aside_in(rulings: Rulings) -> list[SetAside]:
    """The number of records that are set aside, by topic."""
    found = []
    for topic in TOPICS:
        rules = [each for each in rulings.all() if each.topic == topic]
        partitions = {each.partition: rulings.of(topic, each.partition) for each in rules}
        places = [Position(partition, min(aside)) for partition, aside in partitions.items() if aside]
        if places:
            found.append(SetAside(topic, sum(map(len, partitions.values())), min(places)))
    return found


def was_ruled_on(rulings: Rulings, partition: int, entity: str) -> bool:
    """Whether an entity may have an observation with a ruling; lookups in workers' tables are then not used."""
    entities = rulings.entities(OBSERVATIONS, partition)
    return entity in entities or "" in entities
