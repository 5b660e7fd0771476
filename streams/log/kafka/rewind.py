"""Sets a consumer group's offsets to a cut: its members then read what came after that point.

1. Refuse the group of the log's own workers: its offsets say what is decided and emitted, and nobody may set them.
2. Refuse a group with members, and name them. Between this check and the change the broker guards the group: it accepts
   offsets from outside a group only while the group is empty.
3. For `.observations` the offsets are the cut's. For `.changes` each is the offset of the first change whose
   `refold-through` is above the cut's offset. `.changes` is sorted by that header, so a binary search finds it. Changes
   before the cut are not read again, and a batch that the cut divides is read as a whole.
4. With `apply`, set them all in one request.
"""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from refold.avro.errors import InputError
from refold.streams.cut import Cut
from refold.streams.log.kafka.access import GROUP, READ, Grant
from refold.streams.log.kafka.committed import CommittedOffsets, describe_group
from refold.streams.log.kafka.faults import error_of, storage_error
from refold.streams.log.kafka.fold_position import folded_offset_of
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.offsets import KafkaPartition

OBSERVATIONS, CHANGES = "observations", "changes"
TIMEOUT_S = 30.0
_NOT_EMPTY = frozenset({
    KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.NON_EMPTY_GROUP, KafkaError.STALE_MEMBER_EPOCH,
})  # fmt: skip


class RewoundPartition(NamedTuple):
    """One partition of a group: its next offset before the change (None: it had none) and after."""

    partition: int
    before: int | None
    after: int


def rewind(
    log: KafkaLog, group: str, cut: Cut, topic: str = OBSERVATIONS, *, apply: bool = False
) -> list[RewoundPartition]:
    """Return the group's current offsets, and those of the cut.

    Args:
        log: the log.
        group: the consumer group.
        cut: the point after which its members read.
        topic: "observations" or "changes".
        apply: whether to set the offsets.

    Raises:
        InputError: it is the workers' group, or has members.
        StorageError: the offsets cannot be read or set.
    """
    _require_allowed(log, group)
    name = log.topics.observations if topic == OBSERVATIONS else log.topics.changes
    consumer = log.clients.reader(**{"group.id": group})
    doing = f"the offsets of the group {group} could not be"
    try:
        with CommittedOffsets(log.clients, group, name, stable=True) as committed:
            before = committed.ask(sorted(cut.offsets), TIMEOUT_S)
        after = {each: _target(log, topic, each, offset) for each, offset in sorted(cut.offsets.items())}
        if apply:
            _require_set(consumer.commit(
                offsets=[TopicPartition(name, each, offset) for each, offset in after.items()], asynchronous=False
            ))  # fmt: skip
    except KafkaException as failed:
        error = error_of(failed)
        if error is not None and error.code() in _NOT_EMPTY:
            raise InputError(f"the group {group} has members now; end them, then repeat") from failed
        raise storage_error(f"{doing} {'set' if apply else 'read'}", failed, needs=_needs(log, group)) from failed
    finally:
        consumer.close()
    return [
        RewoundPartition(each, before[each].offset if each in before else None, offset)
        for each, offset in after.items()
    ]


def _require_set(answers: list[TopicPartition] | None) -> None:
    for each in answers or ():
        if each.error is not None:
            raise KafkaException(each.error)


def _require_allowed(log: KafkaLog, group: str) -> None:
    if group == log.topics.group:
        raise InputError(
            f"{group} is the group of this log's workers: its offsets record what is folded and emitted; setting them "
            "back would only mislead readers; `refold rebuild --at` answers for any past point"
        )
    members = _members(log, group)
    if members:
        raise InputError(f"the group {group} has members: {', '.join(members)}; end them first, then repeat")


def _members(log: KafkaLog, group: str) -> list[str]:
    admin = log.clients.admin()  # a reference is kept until it has answered
    try:
        found = describe_group(admin, group, TIMEOUT_S)
    except KafkaException as failed:
        error = error_of(failed)
        if error is not None and error.code() == KafkaError.GROUP_ID_NOT_FOUND:
            return []
        raise storage_error(f"the group {group} could not be read", failed, needs=_needs(log, group)) from failed
    return sorted(f"{each.client_id} on {each.host.removeprefix('/')}" for each in found.members)


def _needs(log: KafkaLog, group: str) -> str:
    return log.clients.denial_message(Grant(GROUP, group, READ))


def _target(log: KafkaLog, topic: str, partition: int, offset: int) -> int:
    if topic == OBSERVATIONS:
        return offset
    place = KafkaPartition(log.topics.changes, partition)
    low, high = 0, log.changes_end(partition)
    end = high
    while low < high:
        middle = (low + high) // 2
        found = _next_change(log, place, middle, end)
        if found is None or found[1] > offset:
            high = middle
        else:
            low = found[0] + 1
    return low


def _next_change(log: KafkaLog, place: KafkaPartition, start: int, end: int) -> tuple[int, int] | None:
    """Return the offset of the first change in a range, and its `refold-through`; None if there is none."""
    with closing(log.reading.records(place, start, end, few=True)) as found:
        for raw in found:
            through = folded_offset_of(raw)
            if through is not None:
                return raw.offset, through
    return None
