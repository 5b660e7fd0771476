"""Exports every distinct observation below a cut once, by partition and offset, with the types it needs.

{"definition": {...}, "offset": n}        for each type that differs from the shipped one; offset orders them
{"id": ..., "entity": ..., ...}           avro/json_line.py, with "origin", and "blobs" where it names contents
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import compress, islice
from typing import Any

from refold.avro.codec import framed_id
from refold.avro.errors import InputError, UndecodableError
from refold.avro.json_line import to_line
from refold.avro.observation import Observation
from refold.avro.quarantine import OBSERVATIONS
from refold.avro.registry import TypeVersion
from refold.avro.shipped import shipped_types
from refold.avro.times import millis_text
from refold.streams.cut import Cut
from refold.streams.exchange.contents import exported_blobs
from refold.streams.exchange.files import DEFINITION
from refold.streams.log.port import LogReader, Record, firsts

BATCH_RECORDS = 500


class RunningExport:
    """One export. `exported` counts the observations yielded so far."""

    def __init__(self, log: LogReader, cut: Cut) -> None:
        if cut.observed_until is not None:
            raise InputError(
                "an export holds what was recorded by a point; give a cut without an observed time, "
                "or a time, a marker or offsets"
            )
        self._log = log
        self._cut = cut
        self._by_wire_id: dict[int, TypeVersion] = {}
        for version in log.registry:
            self._by_wire_id.setdefault(version.codec.wire_id, version)
        self.exported = 0

    def definitions(self) -> list[Mapping[str, Any]]:
        """Return the definitions to export: all versions of a type, unless the shipped one is its only version."""
        shipped = {each.fingerprint for each in shipped_types().values()}
        known = [version for version in self._log.registry if version.offset < self._cut.schemas]
        own = {each.definition.name for each in known if each.definition.fingerprint not in shipped}
        return [
            {DEFINITION: each.definition.document, "offset": each.offset}
            for each in known
            if each.definition.name in own
        ]

    def lines(self, progress: Callable[[int], None] = lambda read: None) -> Iterator[dict[str, Any]]:
        """Yield the observations as line objects. `progress` gets the number of records read since its last call."""
        origin = self._log.log_id.hex()
        for partition, end in sorted(self._cut.offsets.items()):
            for record in self._firsts(partition, end, progress):
                self.exported += 1
                yield self._line(record, origin)

    def _firsts(self, partition: int, end: int, progress: Callable[[int], None]) -> Iterator[Record]:
        """Yield the first record with each id. Equal ids have one entity, so one partition."""
        rest = self._log.read(partition, 0, end)
        if not self._log.is_indexed:
            rest = firsts(rest)
        while some := list(islice(rest, BATCH_RECORDS)):
            progress(len(some))
            yield from compress(some, self._log.are_first(some)) if self._log.is_indexed else some

    def _line(self, record: Record, origin: str) -> dict[str, Any]:
        version, observation = self._decoded(record)
        line = to_line(observation, record.id, version.definition)
        line["origin"] = {
            "log": origin,
            "partition": record.partition,
            "offset": record.offset,
            "recorded_at": millis_text(record.recorded_at),
        }
        blobs = exported_blobs(observation, self._log, f"observations {record.partition}={record.offset}")
        if blobs:
            line["blobs"] = blobs
        return line

    def _decoded(self, record: Record) -> tuple[TypeVersion, Observation]:
        """Decode the observation in a record; DamagedRecord names the record's place and the remedy."""
        try:
            version = self._by_wire_id.get(framed_id(record.data))
            if version is None:
                raise UndecodableError("no schema of this log reads it")
            return version, version.codec.identified(record.data)[0]
        except UndecodableError as error:
            raise self._log.registry.rulings.damaged(
                OBSERVATIONS, record.partition, record.offset, record.entity, str(error)
            ) from error
