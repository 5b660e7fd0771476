"""Setting a readable definition in `.schemas`, or a damaged record, aside, and taking that back: an administrator's two
records.

1. Read to the end. The definition at the offset has to be in effect; to take back, it has to be set aside.
2. To set aside: read the schema ids of all observations. One that is written by this definition needs it: refused.
3. Write the decision to `.manifests`, which a producer may not; wait until it shows.
4. Write its place to `.schemas`; wait until it shows, and read on. Whoever reads the place finds the decision.
5. To set aside: read what was recorded since step 2. Where an observation by this definition came meanwhile, the
   definition is taken back, and this is refused.
Who ends between 3 and 4 has decided nothing: a decision without a place has no effect.

A damaged record of `.observations` or `.changes` is set aside by steps 1, 3 and 4: it has to be damaged, and decided by
a worker. Taking it back asks nothing: where it is damaged still, whoever needs it stops at it again.

Where the record's batch cannot be unpacked, the ruling is on all offsets of the batch, whichever of them was given; so
is what takes it back. How far the batch reaches is found by reading from offsets after it (range_reader.py). It need
not be decided: no worker gets past it.

Of `.schemas`, partition 0 of `.manifests`, `.deadletters` and `.keys` only such batches are ruled on. Who sets one
aside has the log open leniently (KafkaLog), for else nothing of it can be asked.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from refold.avro.codec import framed_id
from refold.avro.errors import DamagedRecord, InputError, UndecodableError, UnknownWireId
from refold.avro.quarantine import CHANGES, KEYS, LENGTH_MAX, MANIFESTS, OBSERVATIONS, SCHEMAS, Ruling
from refold.avro.registry import TypeVersion
from refold.streams.log.kafka.activations import write_in_order
from refold.streams.log.kafka.fold_position import is_emitted
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.manifests import MARKERS
from refold.streams.log.kafka.offsets import TopicPlace
from refold.streams.log.kafka.producer import Sent
from refold.streams.log.kafka.quarantine_records import (
    DECISION,
    FORMAT,
    HEADER,
    TOKEN_BYTES,
    Decision,
    decision_key,
    decision_of,
    decision_value,
)
from refold.streams.log.kafka.range_reader import Raw
from refold.streams.log.kafka.records import HELD, NoObservation, entity_of, observed
from refold.streams.log.port import Position
from refold.streams.verify.changes import check_change


class Entry(NamedTuple):
    """A definition at an offset of `.schemas`: since when, whether it is set aside, and when that was decided last.

    Times in milliseconds; decided_at is None where nothing was decided on it.
    """

    offset: int
    type_name: str
    fingerprint: bytes
    registered_at: int
    is_aside: bool
    decided_at: int | None


def entries(log: KafkaLog) -> list[Entry]:
    """Every definition of the log, by offset."""
    decided: dict[int, int] = {}
    for key, value in log.manifests.scan(MARKERS, DECISION):
        decision = decision_of(key, value)
        if isinstance(decision, Ruling):
            continue
        decided[decision.offset] = max(decision.decided_at, decided.get(decision.offset, 0))
    return [_entry(log, version, decided.get(version.offset)) for version in log.registry]


def set_aside(log: KafkaLog, offset: int, now_ms: int, *, apply: bool) -> Entry:
    """Put a definition out of effect; InputError where observations need it, or there is none at the offset."""
    log.refresh()
    version = _version(log, offset)
    if log.registry.is_aside(version.definition):
        raise InputError(f"{log.topics.schemas} 0={offset}: it is set aside; refold quarantine remove undoes that")
    ends = log.ends()
    _require_unneeded(log, version, dict.fromkeys(ends, 0))
    if apply:
        _decide(log, Decision(offset, is_lifted=False, decided_at=now_ms))
        try:
            _require_unneeded(log, version, ends)
        except InputError:
            _decide(log, Decision(offset, is_lifted=True, decided_at=now_ms))
            raise
    return _entry(log, version, now_ms)


def take_back(log: KafkaLog, offset: int, now_ms: int, *, apply: bool) -> Entry:
    """Register a definition again that was set aside; SchemaError where it may not follow what is in effect now."""
    log.refresh()
    version = _version(log, offset)
    if not log.registry.is_aside(version.definition):
        raise InputError(
            f"{log.topics.schemas} 0={offset}: it is not set aside; refold quarantine list shows what is set aside"
        )
    log.registry.check(version.definition, version.wire_ids)
    if apply:
        _decide(log, Decision(offset, is_lifted=True, decided_at=now_ms))
    return _entry(log, version, now_ms)


class RecordEntry(NamedTuple):
    """A damaged record of a topic: whose it is, whether it is set aside, and when that was decided last (milliseconds).

    why: what is wrong with it, where that was looked at. records: how many offsets from this one on were ruled on
    together, as of a batch.
    """

    topic: str
    partition: int
    offset: int
    entity: str
    is_aside: bool
    decided_at: int
    why: str = ""
    records: int = 1


def record_entries(log: KafkaLog) -> list[RecordEntry]:
    """Every record that was ever ruled on, by topic and position."""
    rulings = log.registry.rulings
    return [RecordEntry(each.topic, each.partition, each.offset, each.entity,
                        each.offset in rulings.of(each.topic, each.partition), each.decided_at, records=each.length)
            for each in rulings.all()]  # fmt: skip


def set_record_aside(
    log: KafkaLog, topic: str, partition: int, offset: int, now_ms: int, *, apply: bool
) -> RecordEntry:  # fmt: skip
    """Set a damaged record of a topic aside, or all of its batch where that cannot be unpacked; InputError where it is
    not damaged, or nothing has to be decided on it."""
    log.refresh()
    place = _record_place(log, topic, partition)
    if offset in log.registry.rulings.of(topic, partition):
        raise InputError(f"{_shown(place, offset)}: it is set aside; refold quarantine remove undoes that")
    end = log.offsets.ends([place])[place]
    if topic not in (OBSERVATIONS, CHANGES):
        return _set_batch_aside(log, topic, place, offset, end, now_ms, apply=apply)
    try:
        raw = log.reading.first(place, offset, min(offset + 1, end))
    except DamagedRecord:
        return _set_batch_aside(log, topic, place, offset, end, now_ms, apply=apply)
    if raw is None:
        raise InputError(f"{_shown(place, offset)}: there is no record, so every reader skips it already")
    why = (_damage_of_observation if topic == OBSERVATIONS else _damage_of_change)(log, place, raw)
    entity = entity_of(raw)
    if entity and log.partition_of(entity) != partition:
        entity = ""
    if apply:
        _decide(log, Ruling(topic, partition, offset, 1, entity, is_lifted=False, decided_at=now_ms))
    return RecordEntry(topic, partition, offset, entity, apply, now_ms, why)


def _set_batch_aside(
    log: KafkaLog, topic: str, place: TopicPlace, offset: int, end: int, now_ms: int, *, apply: bool
) -> RecordEntry:  # fmt: skip
    batch = log.reading.unreadable_at(place, offset, end) if offset < end else None
    if batch is None or offset < batch.first:
        raise InputError(f"{_shown(place, offset)}: nothing there is damaged, so nothing needs to be set aside")
    records = batch.end - batch.first
    if records > LENGTH_MAX:
        raise InputError(f"{_shown(place, offset)}: its batch claims {records} offsets, which is impossible")
    if apply:
        _decide(log, Ruling(topic, place.partition, batch.first, records, "", is_lifted=False, decided_at=now_ms))
    return RecordEntry(topic, place.partition, batch.first, "", apply, now_ms, batch.why, records)


def take_record_back(
    log: KafkaLog, topic: str, partition: int, offset: int, now_ms: int, *, apply: bool
) -> RecordEntry:  # fmt: skip
    """Have a record counted again that was set aside; InputError where it was not."""
    log.refresh()
    place = _record_place(log, topic, partition)
    entity = log.registry.rulings.of(topic, partition).get(offset)
    if entity is None:
        raise InputError(
            f"{_shown(place, offset)}: it is not set aside; refold quarantine list shows what is set aside"
        )
    first, records = _ruled_on(log, topic, partition, offset)
    if apply:
        _decide(log, Ruling(topic, partition, first, records, entity, is_lifted=True, decided_at=now_ms))
    return RecordEntry(topic, partition, first, entity, not apply, now_ms, records=records)


def _ruled_on(log: KafkaLog, topic: str, partition: int, offset: int) -> tuple[int, int]:
    """The offset from which the last ruling on an offset is, and on how many offsets it is."""
    found = [
        (each.offset, each.length)
        for each in log.registry.rulings.between(0, len(log.registry))
        if (each.topic, each.partition) == (topic, partition) and each.offset <= offset < each.offset + each.length
    ]
    return found[-1]


def _record_place(log: KafkaLog, topic: str, partition: int) -> TopicPlace:
    partitions = 1 if topic in (SCHEMAS, MANIFESTS, KEYS) else log.partitions
    if not 0 <= partition < partitions:
        raise InputError(
            f"{topic}/{partition}: only records in these partitions can be set aside: 0 to {partitions - 1}"
        )
    return TopicPlace(f"{log.topics.prefix}.{topic}", partition)


def _shown(place: TopicPlace, offset: int) -> str:
    return f"{place.topic} {place.partition}={offset}"


def _damage_of_observation(log: KafkaLog, place: TopicPlace, raw: Raw) -> str:
    """What is wrong with an observation that workers took for one."""
    if raw.offset in log.with_verdicts(place.partition):
        raise InputError(f"{_shown(place, raw.offset)}: it has a verdict, so every reader skips it already")
    if raw.offset >= log.decided(place.partition):
        raise InputError(
            f"{_shown(place, raw.offset)}: no worker has decided it yet; if it is not an observation, a running refold "
            "worker records a verdict, and nothing needs to be set aside"
        )
    try:
        observed(log.registry, place.partition, log.partitions, raw)
    except UnknownWireId as error:
        return str(error)
    except NoObservation as error:
        if error.reason != HELD:
            return str(error)
    raise InputError(
        f"{_shown(place, raw.offset)}: it is not damaged. Correct an observation by another one, or "
        "retract it by another one"
    )


def _damage_of_change(log: KafkaLog, place: TopicPlace, raw: Raw) -> str:
    """What is wrong with a change that a worker wrote."""
    if not is_emitted(raw):
        raise InputError(f"{_shown(place, raw.offset)}: no worker wrote it, so every reader skips it already")
    try:
        found = check_change(log, place.partition, raw.offset)
    except DamagedRecord as error:
        raise InputError(f"{_shown(place, raw.offset)}: {error}") from error
    except LookupError:
        raise InputError(f"{_shown(place, raw.offset)}: no reader sees it yet; repeat this in a moment") from None
    if not found:
        raise InputError(f"{_shown(place, raw.offset)}: it is not damaged: it matches its observations")
    return found[0].problem


def _version(log: KafkaLog, offset: int) -> TypeVersion:
    place = f"{log.topics.schemas} 0={offset}"
    if not 0 <= offset < len(log.registry):
        raise InputError(f"{place}: there is no record; the topic ends at {len(log.registry)}")
    version = log.registry.at(offset)
    if version is None and log.registry.pending_at(offset) is not None:
        raise InputError(
            f"{place}: the definition there is pending, so every reader skips it until a worker that has its "
            "code activates it; then it can be set aside at the position in refold quarantine list"
        )
    if version is None:
        raise InputError(f"{place}: no definition is registered there, so every reader skips it already")
    return version


def _entry(log: KafkaLog, version: TypeVersion, decided_at: int | None) -> Entry:
    definition, at = version.definition, version.registered_at
    is_aside = log.registry.is_aside(definition)
    return Entry(version.offset, definition.name, definition.fingerprint, at, is_aside, decided_at)


def _require_unneeded(log: KafkaLog, version: TypeVersion, starts: Mapping[int, int]) -> None:
    """InputError where an observation from these offsets on is written by this definition and by none other."""
    schema = version.codec.schema_id
    others = (each for each in log.registry if log.registry.is_in_effect(each, len(log.registry)))
    if any(each.codec.schema_id == schema and each.definition != version.definition for each in others):
        return
    log.refresh()
    found = next(_written_by(log, schema, starts), None)
    if found is not None:
        raise InputError(
            f"{log.topics.schemas} 0={version.offset}: the observation at {log.topics.observations} {found} is written "
            f"by this definition of {version.definition.name} and needs it; register a later one instead, with refold "
            "types --register FILE"
        )


def _written_by(log: KafkaLog, schema: int, starts: Mapping[int, int]) -> Iterator[Position]:
    ends = log.ends()
    for partition, start in starts.items():
        refused = log.with_verdicts(partition)
        for raw in log.reading.records(TopicPlace(log.topics.observations, partition), start, ends[partition]):
            try:
                is_by_it = framed_id(raw.value or b"") == schema
            except UndecodableError:
                continue
            if is_by_it and raw.offset not in refused:
                yield Position(partition, raw.offset)


def _decide(log: KafkaLog, decision: Decision | Ruling) -> None:
    """Steps 3 and 4."""
    token = secrets.token_bytes(TOKEN_BYTES)
    what = f"the decision on the {'record' if isinstance(decision, Ruling) else 'definition'} at {decision.offset}"
    manifests, schemas = TopicPlace(log.topics.manifests, MARKERS), TopicPlace(log.topics.schemas, 0)
    first = [Sent(manifests, FORMAT, b"1", [], what)] if isinstance(decision, Ruling) else []
    write_in_order(
        log.clients,
        log.offsets,
        *first,
        Sent(manifests, decision_key(token), decision_value(decision), [], what),
        Sent(schemas, None, None, [(HEADER, token)], what),
    )
    log.refresh()
