"""Decides a record: it is an observation, or it gets a verdict.

The decision depends only on the record's key, partition, bytes and headers (`checked_observation`, which readers also
use for undecided records), and, for a schema that the log does not hold, on the answer "no such id". The schema is
looked up in `.schemas`, read to its end, and then in the Schema Registry. Without an answer nothing is decided
(RegistryUnavailable), and the partition waits.

The kernel, if it is installed, decides common observations by the same checks. It leaves all others to Python; only
Python gives verdicts.

The result of custom reducers on a good record decides nothing: a fold that fails ends the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from refold.avro.errors import UnknownWireId
from refold.avro.kernel import DecidedRecords, ObservationReader, RecordDecider, find_kernel
from refold.avro.registry import Registry
from refold.reducers.cells import new_tuple
from refold.streams.deadletters import Verdict
from refold.streams.log.kafka.deadletters import verdict_on
from refold.streams.log.kafka.range_reader import RawRecord
from refold.streams.log.kafka.records import NoObservation, checked_observation
from refold.streams.log.port import Record
from refold.streams.table.checked import CheckedRecord


class MissingSchema(NamedTuple):
    """What is known of a schema that the log does not hold: a verdict's reason and detail."""

    reason: str
    detail: str


Resolve = Callable[[int], MissingSchema | None]
"""Looks up a wire id; None if the log holds its schema by now. Raises RegistryUnavailable."""


class Decider:
    """Decides the records of one partition."""

    def __init__(self, registry: Registry, resolve: Resolve, partition: int, partitions: int) -> None:
        self._registry = registry
        self._resolve = resolve
        self._partition = partition
        self._partitions = partitions
        self._kernel = find_kernel().kernel
        self._native: RecordDecider | None = None
        self._known = -1

    def decide_plain(self, raws: Iterable[object], recorded_at: int) -> DecidedRecords | None:
        """Let the kernel decide fetched records.

        Args:
            raws: The records.
            recorded_at: The greatest time of the records before them, in milliseconds since 1970.

        Returns:
            The records before the first item that is not a record. For those that are no plain observations `decide`
            must be called. None without a kernel.
        """
        if self._kernel is None:
            return None
        if self._native is None or len(self._registry) != self._known:
            self._known = len(self._registry)
            self._native = self._kernel.RecordDecider(_readers(self._registry), self._partition, self._partitions)
        return self._native.decide(raws, recorded_at)

    def decide(self, raw: RawRecord, recorded_at: int) -> CheckedRecord | Verdict:
        """Decide a record.

        Args:
            raw: The record.
            recorded_at: The greatest time of the records up to this one, in milliseconds since 1970.

        Returns:
            The observation, or the verdict if the record is not one.

        Raises:
            RegistryUnavailable: Neither is known yet: the Schema Registry did not answer.
        """
        partition = self._partition
        while True:
            try:
                observation, observation_id = checked_observation(self._registry, partition, self._partitions, raw)
            except NoObservation as error:
                return verdict_on(partition, raw, error.reason, str(error))
            except UnknownWireId as error:
                missing = self._resolve(error.wire_id)
                if missing is not None:
                    return verdict_on(partition, raw, missing.reason, missing.detail)
            else:
                place = (partition, raw.offset, recorded_at, observation.entity, observation_id, raw.value or b"")
                return new_tuple(CheckedRecord, (new_tuple(Record, place), observation))


def _readers(registry: Registry) -> list[ObservationReader]:
    """Those of all types without code: such a type is never held."""
    coded = {each.definition.name for each in registry if each.definition.has_code}
    plain = (each.codec.native for each in registry.writers() if each.definition.name not in coded)
    return [each for each in plain if each is not None]
