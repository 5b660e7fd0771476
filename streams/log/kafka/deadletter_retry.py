"""Retrying dead letters: their records are appended again, each where the observation in it belongs.

1. Judge each by the worker's own rules (records.py) and by what the log holds now. The bytes stay what they are; key
   and partition are those of the observation in them, so that a misplaced record has its place. What would get a
   verdict again is left.
2. Look through `.observations` for the header `refold-retry-of`, from where a retry can stand: what was retried before
   is left, unless it is to be done again.
3. Append the rest, with their headers and the one that names the position each repeats; flush.
4. Look through what was recorded since step 2: there they stand.
5. What became of them, the workers decide: a verdict, or an observation.

Who ends between 3 and 4 has appended some or all of them, which the next one finds in step 2. Two who retry at once may
append a record twice. And a record may have come by another way since, sent again by its producer: that is not looked
for. None of this changes any state: the same statement is one observation, by its id, however often it stands there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from refold.avro.errors import UndecodableError, UnknownWireId
from refold.avro.registry import Registry
from refold.streams.deadletters import RETRY_OF, Verdict, position_in, retry_header
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.offsets import TopicPlace
from refold.streams.log.kafka.producer import Sent
from refold.streams.log.kafka.range_reader import Raw
from refold.streams.log.kafka.records import NoObservation, observed
from refold.streams.log.port import Position
from refold.streams.partition import partition_of

# By how much append times of a log's brokers may differ, and go back.
CLOCKS_APART_MS = 3_600_000

Fate = Literal["folded", "refused", "waiting"]


class Ready(NamedTuple):
    """A record that would be an observation now: where it goes, and under which key."""

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


def judge(registry: Registry, partitions: int, verdict: Verdict) -> Ready | Refused:
    """Step 1, for one."""
    try:
        entity = registry.decode(verdict.value or b"").entity
        partition = partition_of(entity, partitions)
        raw = Raw(verdict.offset, verdict.timestamp, entity.encode(), verdict.value, verdict.headers)
        observed(registry, partition, partitions, raw)
    except UnknownWireId as error:
        return Refused("no_such_id", f"the log has no schema with id {error.wire_id}")
    except UndecodableError as error:
        return Refused("undecodable", str(error))
    except NoObservation as error:
        return Refused(error.reason, str(error))
    return Ready(verdict, partition, entity)


def retried(log: KafkaLog, ready: Iterable[Ready]) -> dict[Position, Position]:
    """Step 2: of those that were retried before, where the last retry stands. Reads all that was recorded since."""
    starts: dict[int, int] = {}
    wanted = set()
    for each in ready:
        start = each.verdict.offset + 1
        if each.partition != each.verdict.partition:
            start = log.first_after(each.partition, each.verdict.timestamp - CLOCKS_APART_MS)
        starts[each.partition] = min(start, starts.get(each.partition, start))
        wanted.add(each.of)
    return {of: at for of, at in _retries(log, starts).items() if of in wanted}


def retry(log: KafkaLog, ready: Sequence[Ready]) -> dict[Position, Position]:
    """Steps 3 and 4: append them, durable on return; where each stands now.

    One that another's open transaction hides is left out of the answer.
    """
    starts = log.ends()
    for each in ready:
        log.put(_again(log, each))
    log.flush()
    log.refresh()
    found = _retries(log, {each.partition: starts[each.partition] for each in ready})
    return {each.of: found[each.of] for each in ready if each.of in found}


def fates(log: KafkaLog, positions: Iterable[Position]) -> Mapping[Position, Fate]:
    """Step 5: what became of retries, as of the log's last `refresh`."""
    return {each: _fate(log, each) for each in positions}


def _fate(log: KafkaLog, at: Position) -> Fate:
    if at.offset in log.with_verdicts(at.partition):
        return "refused"
    return "folded" if at.offset < log.decided(at.partition) else "waiting"


def _again(log: KafkaLog, ready: Ready) -> Sent:
    verdict = ready.verdict
    headers = [(name, value) for name, value in verdict.headers if name != RETRY_OF]
    headers.append(retry_header(ready.of))
    place = TopicPlace(log.topics.observations, ready.partition)
    return Sent(place, ready.entity.encode(), verdict.value, headers, f"the retry of {ready.of}")


def _retries(log: KafkaLog, starts: Mapping[int, int]) -> dict[Position, Position]:
    """By the position repeated, where the last retry stands, from an offset of some partitions to their ends."""
    found = {}
    ends = log.ends()
    for partition, start in sorted(starts.items()):
        for raw in log.reading.records(TopicPlace(log.topics.observations, partition), start, ends[partition]):
            of = position_in(raw.header(RETRY_OF))
            if of is not None:
                found[of] = Position(partition, raw.offset)
    return found
