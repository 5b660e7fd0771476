"""Decides a record: it is an observation, or it gets a verdict.

The decision depends only on the record's key, partition, bytes and headers (`observed`, which readers also use for
what is not decided yet), and, for a schema that the log does not hold, on the answer "no such id". The schema is looked
up to the end of `.schemas`, then where wire ids come from. Without an answer nothing is decided (RegistryUnavailable),
and the partition waits.

The result of custom reducers on a good record decides nothing: a fold that fails ends the process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from refold.avro.errors import UnknownWireId
from refold.avro.registry import Registry
from refold.reducers.cells import new_tuple
from refold.streams.deadletters import Verdict
from refold.streams.log.kafka.deadletters import verdict_on
from refold.streams.log.kafka.range_reader import Raw
from refold.streams.log.kafka.records import NoObservation, observed
from refold.streams.log.port import Record
from refold.streams.table.batch import DecodedRecord


class Missing(NamedTuple):
    """What is known of a schema that the log does not hold: a verdict's reason and detail."""

    reason: str
    detail: str


Resolve = Callable[[int], Missing | None]
"""Look for a wire id as far as there is to look; None: the log holds it by now. RegistryUnavailable."""


class Decider:
    """Decides the records of one partition."""

    def __init__(self, registry: Registry, resolve: Resolve, partition: int, partitions: int) -> None:
        self._registry = registry
        self._resolve = resolve
        self._partition = partition
        self._partitions = partitions

    def decide(self, raw: Raw, recorded_at: int) -> DecodedRecord | Verdict:
        """The observation, or the verdict; RegistryUnavailable where neither is known yet.

        recorded_at: the running maximum with this record, in milliseconds.
        """
        partition = self._partition
        while True:
            try:
                observation, observation_id = observed(self._registry, partition, self._partitions, raw)
            except NoObservation as error:
                return verdict_on(partition, raw, error.reason, str(error))
            except UnknownWireId as error:
                missing = self._resolve(error.wire_id)
                if missing is not None:
                    return verdict_on(partition, raw, missing.reason, missing.detail)
            else:
                place = (partition, raw.offset, recorded_at, observation.entity, observation_id, raw.value or b"")
                return new_tuple(DecodedRecord, (new_tuple(Record, place), observation))
