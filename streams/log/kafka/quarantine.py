"""Sets a readable definition in `.schemas`, or a damaged record, aside, and restores it. An administrator does either
with two records.

1. Read to the end. The definition at the offset must be in effect; to be restored, it must be set aside.
2. To set aside: read the schema ids of all observations. An observation written with this definition needs it: refuse.
3. Write the decision to `.manifests`, to which a producer may not write; wait until it is visible.
4. Write the record that refers to it to `.schemas`; wait until it is visible, and read on. Every reader of that record
   finds the decision.
5. To set aside: read what was recorded since step 2. If an observation written with this definition arrived meanwhile,
   restore the definition, and refuse.
A process that ends between 3 and 4 has decided nothing: a decision without a record in `.schemas` has no effect.

A damaged record of `.observations` or `.changes` is set aside by steps 1, 3 and 4: it must be damaged, and a worker
must have decided it. Restoring has no precondition: if the record is still damaged, every reader that needs it stops
at it again.

If the record's batch cannot be decompressed, the ruling covers all offsets of the batch, whichever of them was given.
So does the ruling that restores it. The end of the batch is found by reading from offsets after it (range_reader.py).
The batch need not be decided: no worker gets past it.

Of `.schemas`, partition 0 of `.manifests`, `.deadletters` and `.keys` only such batches can be set aside. The process
that does so opens the log leniently (KafkaLog), because otherwise it cannot read the log at all.
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
from refold.streams.log.kafka.offsets import KafkaPartition
from refold.streams.log.kafka.producer import OutgoingRecord
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
from refold.streams.log.kafka.range_reader import RawRecord
from refold.streams.log.kafka.records import HELD, NoObservation, checked_observation, entity_of
from refold.streams.log.port import Position
from refold.streams.verify.changes import check_change


class Entry(NamedTuple):
    """A definition at an offset of `.schemas`: when it was registered, and whether it is set aside.

    Attributes:
        decided_at: The time of the last decision on it; None if there was none. Times are in milliseconds.
    """

    offset: int
    type_name: str
    fingerprint: bytes
    registered_at: int
    is_aside: bool
    decided_at: int | None


def entries(log: KafkaLog) -> list[Entry]:
    """Return every definition of the log, by offset."""
    decided: dict[int, int] = {}
    for key, value in log.manifests.scan(MARKERS, DECISION):
        decision = decision_of(key, value)
        if isinstance(decision, Ruling):
            continue
        decided[decision.offset] = max(decision.decided_at, decided.get(decision.offset, 0))
    return [_entry(log, version, decided.get(version.offset)) for version in log.registry]


def set_aside(log: KafkaLog, offset: int, now_ms: int, *, apply: bool) -> Entry:
    """Set a definition aside, so that it is no longer in effect.

    Args:
        log: the log.
        offset: the definition's offset in `.schemas`.
        now_ms: the current time, in milliseconds.
        apply: False only checks.

    Raises:
        InputError: observations need the definition, or there is none at the offset.
    """
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


def restore_definition(log: KafkaLog, offset: int, now_ms: int, *, apply: bool) -> Entry:
    """Restore a definition that was set aside; the arguments are those of `set_aside`.

    Raises:
        InputError: It is not set aside.
        SchemaError: Evolution forbids it after the definitions that are in effect now.
    """
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
    """A damaged record of a topic: its entity, whether it is set aside, and the last decision's time (milliseconds).

    Attributes:
        why: What is wrong with it; empty if that was not checked.
        records: How many offsets, from this one on, one ruling covers; more than 1 for a batch.
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
    """Return every record with a ruling, by topic and position."""
    rulings = log.registry.rulings
    return [RecordEntry(each.topic, each.partition, each.offset, each.entity,
                        each.offset in rulings.of(each.topic, each.partition), each.decided_at, records=each.length)
            for each in rulings.all()]  # fmt: skip


def set_record_aside(
    log: KafkaLog, topic: str, partition: int, offset: int, now_ms: int, *, apply: bool
) -> RecordEntry:  # fmt: skip
    """Set a damaged record of a topic aside, or its whole batch if that cannot be decompressed.

    Args:
        log: The log, open for writing.
        topic: The topic's name, without the prefix.
        partition: The record's partition.
        offset: Its offset.
        now_ms: The time of the decision, in milliseconds since 1970.
        apply: False only returns what would be done.

    Raises:
        InputError: The record is not damaged, or needs no decision.
    """
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
    log: KafkaLog, topic: str, place: KafkaPartition, offset: int, end: int, now_ms: int, *, apply: bool
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


def restore_record(
    log: KafkaLog, topic: str, partition: int, offset: int, now_ms: int, *, apply: bool
) -> RecordEntry:  # fmt: skip
    """Restore a record that was set aside; the arguments are those of `set_record_aside`.

    Raises:
        InputError: It is not set aside.
    """
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
    """Return the first offset that the last ruling on `offset` covers, and how many offsets it covers."""
    found = [
        (each.offset, each.length)
        for each in log.registry.rulings.between(0, len(log.registry))
        if (each.topic, each.partition) == (topic, partition) and each.offset <= offset < each.offset + each.length
    ]
    return found[-1]


def _record_place(log: KafkaLog, topic: str, partition: int) -> KafkaPartition:
    partitions = 1 if topic in (SCHEMAS, MANIFESTS, KEYS) else log.partitions
    if not 0 <= partition < partitions:
        raise InputError(
            f"{topic}/{partition}: only records in these partitions can be set aside: 0 to {partitions - 1}"
        )
    return KafkaPartition(f"{log.topics.prefix}.{topic}", partition)


def _shown(place: KafkaPartition, offset: int) -> str:
    return f"{place.topic} {place.partition}={offset}"


def _damage_of_observation(log: KafkaLog, place: KafkaPartition, raw: RawRecord) -> str:
    """Return what is wrong with a record that the workers accepted as an observation."""
    if raw.offset in log.with_verdicts(place.partition):
        raise InputError(f"{_shown(place, raw.offset)}: it has a verdict, so every reader skips it already")
    if raw.offset >= log.decided_end(place.partition):
        raise InputError(
            f"{_shown(place, raw.offset)}: no worker has decided it yet; if it is not an observation, a running refold "
            "worker records a verdict, and nothing needs to be set aside"
        )
    try:
        checked_observation(log.registry, place.partition, log.partitions, raw)
    except UnknownWireId as error:
        return str(error)
    except NoObservation as error:
        if error.reason != HELD:
            return str(error)
    raise InputError(
        f"{_shown(place, raw.offset)}: it is not damaged. Correct an observation by another one, or "
        "retract it by another one"
    )


def _damage_of_change(log: KafkaLog, place: KafkaPartition, raw: RawRecord) -> str:
    """Return what is wrong with a change that a worker wrote."""
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
    """Raise InputError if an observation at or after these offsets was written with this definition and no other."""
    schema = version.codec.wire_id
    others = (each for each in log.registry if log.registry.is_in_effect(each, len(log.registry)))
    if any(each.codec.wire_id == schema and each.definition != version.definition for each in others):
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
        for raw in log.reading.records(KafkaPartition(log.topics.observations, partition), start, ends[partition]):
            try:
                is_by_it = framed_id(raw.value or b"") == schema
            except UndecodableError:
                continue
            if is_by_it and raw.offset not in refused:
                yield Position(partition, raw.offset)


def _decide(log: KafkaLog, decision: Decision | Ruling) -> None:
    """Do steps 3 and 4 of the module's protocol."""
    token = secrets.token_bytes(TOKEN_BYTES)
    what = f"the decision on the {'record' if isinstance(decision, Ruling) else 'definition'} at {decision.offset}"
    manifests, schemas = KafkaPartition(log.topics.manifests, MARKERS), KafkaPartition(log.topics.schemas, 0)
    first = [OutgoingRecord(manifests, FORMAT, b"1", [], what)] if isinstance(decision, Ruling) else []
    write_in_order(
        log.clients,
        log.offsets,
        *first,
        OutgoingRecord(manifests, decision_key(token), decision_value(decision), [], what),
        OutgoingRecord(schemas, None, None, [(HEADER, token)], what),
    )
    log.refresh()
