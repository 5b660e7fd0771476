"""Setting a readable definition in `.schemas` aside, and taking that back: an administrator's two records.

1. Read to the end. The definition at the offset has to be in effect; to take back, it has to be set aside.
2. To set aside: read the schema ids of all observations. One that is written by this definition needs it: refused.
3. Write the decision to `.manifests`, which a producer may not; wait until it shows.
4. Write its place to `.schemas`; wait until it shows, and read on. Whoever reads the place finds the decision.
5. To set aside: read what was recorded since step 2. Where an observation by this definition came meanwhile, the
   definition is taken back, and this is refused.
Who ends between 3 and 4 has decided nothing: a decision without a place has no effect.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from refold.avro.codec import framed_id
from refold.avro.errors import InputError, UndecodableError
from refold.avro.registry import TypeVersion
from refold.streams.log.kafka.activations import write_in_order
from refold.streams.log.kafka.decisions import (
    DECISION,
    HEADER,
    TOKEN_BYTES,
    Decision,
    decision_key,
    decision_of,
    decision_value,
)
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.manifests import MARKERS
from refold.streams.log.kafka.offsets import Place
from refold.streams.log.kafka.producer import Sent
from refold.streams.log.port import Position


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
        decided[decision.offset] = max(decision.decided_at, decided.get(decision.offset, 0))
    return [_entry(log, version, decided.get(version.offset)) for version in log.registry]


def set_aside(log: KafkaLog, offset: int, now_ms: int, *, apply: bool) -> Entry:
    """Put a definition out of effect; InputError where observations need it, or there is none at the offset."""
    log.refresh()
    version = _version(log, offset)
    if log.registry.is_aside(version.definition):
        raise InputError(f"{log.topics.schemas} 0={offset}: it is set aside; refold quarantine remove takes that back")
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
        raise InputError(f"{log.topics.schemas} 0={offset}: it is not set aside; refold quarantine list shows what is")
    log.registry.check(version.definition, version.wire_ids)
    if apply:
        _decide(log, Decision(offset, is_lifted=True, decided_at=now_ms))
    return _entry(log, version, now_ms)


def _version(log: KafkaLog, offset: int) -> TypeVersion:
    place = f"{log.topics.schemas} 0={offset}"
    if not 0 <= offset < len(log.registry):
        raise InputError(f"{place}: there is nothing yet; the topic ends at {len(log.registry)}")
    version = log.registry.at(offset)
    if version is None and log.registry.pending_at(offset) is not None:
        raise InputError(
            f"{place}: the definition there is pending, so every reader passes over it until a worker that has its "
            "code activates it; then it can be set aside at the place that refold quarantine list gives"
        )
    if version is None:
        raise InputError(f"{place}: no definition is registered there, so every reader passes over it already")
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
        for raw in log.reading.records(Place(log.topics.observations, partition), start, ends[partition]):
            try:
                is_by_it = framed_id(raw.value or b"") == schema
            except UndecodableError:
                continue
            if is_by_it and raw.offset not in refused:
                yield Position(partition, raw.offset)


def _decide(log: KafkaLog, decision: Decision) -> None:
    """Steps 3 and 4."""
    token = secrets.token_bytes(TOKEN_BYTES)
    what = f"the decision on the definition at {decision.offset}"
    manifests, schemas = Place(log.topics.manifests, MARKERS), Place(log.topics.schemas, 0)
    write_in_order(
        log.clients,
        log.offsets,
        Sent(manifests, decision_key(token), decision_value(decision), [], what),
        Sent(schemas, None, None, [(HEADER, token)], what),
    )
    log.refresh()
