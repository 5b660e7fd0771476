"""Retries dead letters: appends their records again, each to the partition of its observation.

1. Check each by the worker's rules (records.py) and the log's present definitions. The bytes do not change; key and
   partition are those of the observation, so that a misplaced record gets its right place. A record that would get a
   verdict again is left out.
2. Search `.observations` for the header `refold-retry-of`, from the first possible offset of a retry on: records that
   were retried before are left out, unless the caller wants to repeat them.
3. Append the others, with their headers and a header with the position that each repeats; flush.
4. Search the records since step 2 for the positions of the retries.
5. The workers decide each retry: a verdict, or an observation.

A process that ends between 3 and 4 has appended some or all of them, and the next one finds these in step 2. Two
concurrent retries may append a record twice. A producer may also have sent a record again; that is not checked. None of
this changes any state: equal records are one observation, by its id.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from refold.avro.errors import UndecodableError, UnknownWireId
from refold.avro.registry import Registry
from refold.streams.deadletters import RETRY_OF, DeadLetterView, Verdict, position_in, retry_header
from refold.streams.deadline import Deadline
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.offsets import KafkaPartition
from refold.streams.log.kafka.producer import OutgoingRecord
from refold.streams.log.kafka.range_reader import RawRecord
from refold.streams.log.kafka.records import NoObservation, checked_observation
from refold.streams.log.port import Position
from refold.streams.partitioner import partition_of

# The maximum difference of the brokers' clocks, and the maximum step back of append times.
CLOCKS_APART_MS = 3_600_000
POLL_S = 0.2
FATES = {
    "folded": "it is an observation now",
    "refused": "it got a verdict again",
    "waiting": "no worker has decided it yet",
}

Fate = Literal["folded", "refused", "waiting"]


class RetryReady(NamedTuple):
    """A record that would be an observation now: its partition and key."""

    verdict: Verdict
    partition: int
    entity: str

    @property
    def of(self) -> Position:
        """The position that it repeats."""
        return Position(self.verdict.partition, self.verdict.offset)


class Refused(NamedTuple):
    """The verdict that a record would get again."""

    reason: str
    detail: str


def judge(registry: Registry, partitions: int, verdict: Verdict) -> RetryReady | Refused:
    """Step 1, for one record.

    Args:
        registry: The log's types now.
        partitions: The number of the log's partitions.
        verdict: The decision on the record, with the record.

    Returns:
        The observation to append, or why it is still none.
    """
    try:
        entity = registry.decode(verdict.value or b"").entity
        partition = partition_of(entity, partitions)
        raw = RawRecord(verdict.offset, verdict.timestamp, entity.encode(), verdict.value, verdict.headers)
        checked_observation(registry, partition, partitions, raw)
    except UnknownWireId as error:
        return Refused("no_such_id", f"the log has no schema with id {error.wire_id}")
    except UndecodableError as error:
        return Refused("undecodable", str(error))
    except NoObservation as error:
        return Refused(error.reason, str(error))
    return RetryReady(verdict, partition, entity)


def retried(log: KafkaLog, ready: Iterable[RetryReady]) -> dict[Position, Position]:
    """Step 2: the position of the last retry of each record that was retried before. Reads everything recorded
    since.
    """
    starts: dict[int, int] = {}
    wanted = set()
    for each in ready:
        start = each.verdict.offset + 1
        if each.partition != each.verdict.partition:
            start = log.first_after(each.partition, each.verdict.timestamp - CLOCKS_APART_MS)
        starts[each.partition] = min(start, starts.get(each.partition, start))
        wanted.add(each.of)
    return {of: at for of, at in _retries(log, starts).items() if of in wanted}


def retry(log: KafkaLog, ready: Sequence[RetryReady]) -> dict[Position, Position]:
    """Steps 3 and 4: append the records, durable on return. Returns the position of each retry.

    A retry that is hidden by another open transaction is missing in the result.
    """
    starts = log.ends()
    for each in ready:
        log.put(_retry_record(log, each))
    log.flush()
    log.refresh()
    found = _retries(log, {each.partition: starts[each.partition] for each in ready})
    return {each.of: found[each.of] for each in ready if each.of in found}


def fates(log: KafkaLog, positions: Iterable[Position]) -> Mapping[Position, Fate]:
    """Step 5: the results of retries, as of the log's last `refresh`."""
    return {each: _fate(log, each) for each in positions}


def _fate(log: KafkaLog, at: Position) -> Fate:
    if at.offset in log.with_verdicts(at.partition):
        return "refused"
    return "folded" if at.offset < log.decided_end(at.partition) else "waiting"


def _retry_record(log: KafkaLog, ready: RetryReady) -> OutgoingRecord:
    verdict = ready.verdict
    headers = [(name, value) for name, value in verdict.headers if name != RETRY_OF]
    headers.append(retry_header(ready.of))
    place = KafkaPartition(log.topics.observations, ready.partition)
    return OutgoingRecord(place, ready.entity.encode(), verdict.value, headers, f"the retry of {ready.of}")


def _retries(log: KafkaLog, starts: Mapping[int, int]) -> dict[Position, Position]:
    """The position of the last retry by the repeated position, from given offsets to the partitions' ends."""
    found = {}
    ends = log.ends()
    for partition, start in sorted(starts.items()):
        for raw in log.reading.records(KafkaPartition(log.topics.observations, partition), start, ends[partition]):
            of = position_in(raw.header(RETRY_OF))
            if of is not None:
                found[of] = Position(partition, raw.offset)
    return found


class RetryReport(NamedTuple):
    """The report on one dead letter.

    Attributes:
        outcome: `ready`, `refused`, `retried` (before) or `appended`.
        at: Its retry.
    """

    letter: DeadLetterView
    outcome: str
    text: str
    at: Position | None = None
    fate: str | None = None


def retry_plan(
    port: KafkaLog, found: Sequence[DeadLetterView], *, again: bool
) -> tuple[list[RetryReport], dict[Position, RetryReady]]:  # fmt: skip
    """Steps 1 and 2, for some dead letters.

    Args:
        port: The log, as of its last `refresh`.
        found: The dead letters.
        again: Whether those that were retried before are to be retried again.

    Returns:
        What would be done with each, and the records to append, by the positions that they repeat.
    """
    judged = {each.position: judge(port.registry, port.partitions, each.verdict) for each in found}
    ready = {at: each for at, each in judged.items() if not isinstance(each, Refused)}
    before = retried(port, ready.values())
    became = fates(port, before.values())
    reports = []
    for letter in found:
        each, at = judged[letter.position], before.get(letter.position)
        if isinstance(each, Refused):
            reports.append(RetryReport(letter, "refused", f"would be refused again, {each.reason}: {each.detail}"))
        elif at is not None and not again:
            reports.append(RetryReport(letter, "retried", f"was retried at {at}; {FATES[became[at]]}", at, became[at]))
            del ready[letter.position]
        else:
            moved = "" if each.entity.encode() == letter.verdict.key else f" under the key {each.entity}"
            reports.append(RetryReport(letter, "ready", f"would be appended to partition {each.partition}{moved}"))
    return reports, ready


def carry_out(
    port: KafkaLog, reports: Sequence[RetryReport], ready: Mapping[Position, RetryReady], wait_s: float
) -> list[RetryReport]:  # fmt: skip
    """Steps 3 to 5: append the records of a plan, and wait up to `wait_s` for the decision on each."""
    appended = retry(port, list(ready.values()))
    deadline = Deadline(wait_s)
    became = fates(port, appended.values())
    while "waiting" in became.values() and not deadline.is_past:
        time.sleep(POLL_S)
        port.refresh()
        became = fates(port, appended.values())
    done = []
    for each in reports:
        if each.outcome != "ready":
            done.append(each)
            continue
        at = appended.get(each.letter.position)
        fate = "waiting" if at is None else became[at]
        place = "" if at is None else f" at {at}"
        done.append(RetryReport(each.letter, "appended", f"appended{place}; {FATES[fate]}", at, fate))
    return done
