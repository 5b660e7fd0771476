"""Damaged records of a log on Kafka: what a reader does where it meets one, and what an administrator may set aside.

A record is damaged where its bytes are not what was written: a disk or a broker lost them. Of `.observations` it is one
below the point up to which its partition is decided, without a verdict, that is no observation by the rules of
records.py; above that point a worker gives a verdict. Of `.changes` it is one that a worker wrote, by its headers, and
that holds no change.

1. A reader that needs it raises DamagedRecord: topic, partition, offset, why, and the command that sets it aside.
2. `refold quarantine add` writes a ruling (quarantine_records.py): its authority in `.manifests`, its place in
   `.schemas`. Whoever reads `.schemas` to that place passes over the record, wherever it is met, for every cut
   (avro/quarantine.py), and counts it. Records of one batch that cannot be unpacked are damaged together: the client
   gives none of them, for ever. The ruling is on every offset of the batch, and a reader that meets it begins again
   after the offsets that are set aside (UnreadableBatches). Nobody knows whose records they were. Above the decided
   point a batch is damaged likewise: a worker cannot give verdicts on what it cannot read.
3. A table or an epoch that was made while it was whole holds what it said. Each notes the offsets that it leaves out:
   a table in its position, an epoch in its manifest. Where those below its own offset are not the ones set aside by
   now, a worker makes the table again, and readers begin from another epoch, or from nothing.
4. A ruling emits no change. What was emitted of the record stays in `.changes`: `verify` holds the chain of that entity
   to nothing, and sinks read its type again.
5. Taking it back is another ruling, and goes by the same steps: the record is needed again. What was made meanwhile
   leaves it out, and is not used.
Of the other topics only whole batches are damaged.
6. A batch of `.snapshots`, of `.contents`, or of `.manifests` outside of partition 0 is passed over by every reader,
   and counted. Epochs are made again; a reader that needs a content names it.
7. `.schemas`, `.deadletters` and partition 0 of `.manifests` are needed: answers change where a definition, a verdict,
   a marker or a ruling is not known. A reader stops, as in 1, and a ruling is as in 2. In `.schemas` and `.manifests`
   the ruling comes after the batch. So a reader that meets a batch there reads ahead for it, past all that cannot be
   read (rulings_ahead.py).
8. `.keys` is needed likewise by who seals and opens. A batch that is set aside may have destroyed any key that was made
   before it: none of these is used any more (agents/keys/kafka.py). Its readers read ahead for a ruling, too: they may
   run on while it is made.
Who ends anywhere in between leaves readers that know the ruling and readers that do not know it yet; a worker's table
is asked about no entity that was ever ruled on, so that one who knows it answers alike whatever workers know.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from refold.avro.errors import CorruptionError
from refold.avro.quarantine import CHANGES, DEADLETTERS, KEYS, MANIFESTS, OBSERVATIONS, SCHEMAS, TOPICS, Rulings
from refold.streams.log.kafka.offsets import TopicPlace
from refold.streams.log.kafka.topics import Topics
from refold.streams.log.port import Position, SetAside


class UnreadableBatches:
    """Where reading goes on at a batch of a log that cannot be unpacked. For any thread."""

    def __init__(
        self, topics: Topics, rulings: Rulings, ahead: Callable[[], Rulings] = Rulings, *, is_lenient: bool = False
    ) -> None:  # fmt: skip
        """ahead: the rulings that there are, also those that stand after a batch that cannot be read.

        is_lenient: pass over what is needed, too, but for observations and changes: for who sets it aside.
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
        self._passed: dict[TopicPlace, set[int]] = {}
        self._left: dict[TopicPlace, int] = {}

    def is_aside(self, place: TopicPlace, offset: int) -> bool:
        """Whether an offset is set aside."""
        name = self._names.get(place.topic)
        return name is not None and offset in self._rulings.of(name, place.partition)

    def is_needed(self, place: TopicPlace) -> bool:
        """Whether a reader stops at a batch that is not set aside; else it passes over it (6)."""
        name = self._names.get(place.topic)
        if name in (OBSERVATIONS, CHANGES):
            return True
        is_passed = place.topic in self._unneeded or (name == MANIFESTS and place.partition > 0)
        return not is_passed and not self._is_lenient

    def pass_over(self, place: TopicPlace, start: int, end: int) -> None:
        """Count what was passed over: start <= offset < end."""
        with self._lock:
            self._passed.setdefault(place, set()).update(range(start, end))

    def passed_over(self) -> list[SetAside]:
        """What was passed over, by topic."""
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

    def after(self, place: TopicPlace, first: int, wanted: int, why: str) -> int:
        """The first offset from a wanted one on that is not set aside.

        Args:
            place: The partition.
            first: The batch's first offset.
            wanted: The offset that is to be read next; in the batch, or before it.
            why: What the client said of the batch.

        Returns:
            An offset after the wanted one. It may be in the batch still.

        Raises:
            DamagedRecord: The next offset is not set aside.
            CorruptionError: Likewise, in a topic whose records are never set aside.
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

    def left_out_to(self, place: TopicPlace) -> int:
        """The offset after the last batch that is set aside and that a reader passed over; 0 where there was none."""
        with self._lock:
            return self._left.get(place, 0)


def unreadable(place: TopicPlace, first: int, why: str) -> CorruptionError:
    """The error at a batch that cannot be read and is not set aside."""
    return CorruptionError(
        f"{place.topic} {place.partition}={first}: the batch is damaged: it cannot be read ({why}). Restore the "
        "brokers' data"
    )


def set_aside_in(rulings: Rulings) -> list[SetAside]:
    """How many records are set aside, by topic."""
    found = []
    for topic in TOPICS:
        rules = [each for each in rulings.all() if each.topic == topic]
        partitions = {each.partition: rulings.of(topic, each.partition) for each in rules}
        places = [Position(partition, min(aside)) for partition, aside in partitions.items() if aside]
        if places:
            found.append(SetAside(topic, sum(map(len, partitions.values())), min(places)))
    return found


def was_ruled_on(rulings: Rulings, partition: int, entity: str) -> bool:
    """Whether an observation of an entity may ever have been ruled on: then what workers keep of it is not asked."""
    entities = rulings.entities(OBSERVATIONS, partition)
    return entity in entities or "" in entities
