"""The rules that the items of an archive obey. Both the writer and the reader of an archive check every item.

Every log obeys them, and a file that obeys them can be folded into a log.
"""

from __future__ import annotations

import json
from typing import NoReturn

from refold.avro.blob import is_content_of
from refold.avro.definition import TypeDefinition, parse
from refold.avro.errors import InputError, RefoldError, SchemaError
from refold.avro.ids import identify
from refold.avro.observation import Observation
from refold.avro.registry import Registry
from refold.reducers.fold import Fold
from refold.streams.cut import Cut, parse_cut
from refold.streams.exchange.archive_form import Content, Definition, Header, Item
from refold.streams.log.port import DeadLetter, Marked, Record, is_hole
from refold.streams.partitioner import check_partitions, partition_of


class ArchiveCheck:
    """One pass over an archive. Raises InputError if an item breaks a rule; the message does not name the item."""

    def __init__(self) -> None:
        self.registry = Registry()
        self._header: Header | None = None
        self._cut: Cut | None = None
        self._ends: dict[int, int] = {}
        self._deadletters: dict[int, int] = {}
        self._markers: set[str] = set()
        self._times: dict[int | None, int] = {}

    @property
    def header(self) -> Header:
        """The first item."""
        assert self._header is not None
        return self._header

    @property
    def cut(self) -> Cut:
        """The archived point."""
        assert self._cut is not None
        return self._cut

    def take(self, item: Item) -> Observation | None:
        """Check the next item.

        Returns:
            The observation in a record that is not a hole; None for any other item.

        Raises:
            InputError: The item is out of order, contradicts an earlier one, or is not what its name or hash says.
        """
        match item:
            case Header():
                self._header, self._cut = item, _cut(item.cut)
                check_partitions(len(self.cut.offsets))
                self._ends = dict.fromkeys(range(len(self.cut.offsets)), 0)
                if self.cut.offsets.keys() != self._ends.keys() or self.cut.observed_until is not None:
                    raise InputError("the cut in its header is not the end of a log")
            case Definition():
                self._definition(item)
            case Record():
                return self._observation(item)
            case Content():
                if not is_content_of(item.sha256, item.content):
                    raise InputError(f"the content {item.sha256.hex()} does not match its name")
            case DeadLetter():
                if item.partition not in self._ends or item.offset <= self._deadletters.get(item.partition, -1):
                    _refuse_order(f"the dead letter {item.partition}={item.offset}")
                self._deadletters[item.partition] = item.offset
            case Marked():
                self._marker(item)
        return None

    def finish(self) -> None:
        """Check, after the last item, that everything in the header's cut has been read.

        Raises:
            InputError: Records or definitions are missing, or the definitions are not those of the header.
        """
        if self._ends != dict(self.cut.offsets) or len(self.registry) != self.cut.schemas:
            raise InputError("it does not reach the cut in its header")
        if self.registry.digest() != self.cut.types_digest:
            raise InputError("its type definitions are not those of the cut in its header")

    def _definition(self, item: Definition) -> None:
        place = f"definition {item.offset}"
        if item.offset != len(self.registry):
            _refuse_order(place)
        self._pass(None, item.registered_at, place)
        if not item.definition:
            self.registry.skip(item.registered_at)
            return
        try:
            definition = parse(json.loads(item.definition), place=place)
            self.registry.check(definition)
        except ValueError as error:
            raise InputError(f"{place} cannot be registered: {error}") from error
        self.registry.add(definition, item.registered_at)

    def _observation(self, record: Record) -> Observation | None:
        place = f"observation {record.partition}={record.offset}"
        if self._ends.get(record.partition) != record.offset:
            _refuse_order(place)
        self._ends[record.partition] += 1
        self._pass(record.partition, record.recorded_at, place)
        if is_hole(record):
            return None
        try:
            observation = self.registry.decode(record.data)
        except RefoldError as error:
            raise InputError(f"{place} cannot be read: {error}") from error
        if identify(observation) != record.id or observation.entity != record.entity:
            raise InputError(f"{place} is not the observation that its id and entity say")
        if partition_of(record.entity, len(self._ends)) != record.partition:
            raise InputError(f"{place} is misplaced: {record.entity} belongs in another partition")
        return observation

    def _marker(self, item: Marked) -> None:
        cut = _cut(item.cut)
        ends = self.cut.offsets
        is_within = cut.offsets.keys() == ends.keys() and all(cut.offsets[p] <= ends[p] for p in ends)
        if cut.log_id != self.cut.log_id or not is_within or cut.schemas > self.cut.schemas:
            raise InputError(f"the marker {item.name!r} is not at a point of this log")
        if item.name in self._markers:
            raise InputError(f"the marker {item.name!r} is in it twice")
        self._markers.add(item.name)

    def _pass(self, partition: int | None, time_ms: int, place: str) -> None:
        """Check that times never decrease within a partition, or among definitions. Across these they may decrease,
        because each broker has its own clock."""
        if time_ms < self._times.get(partition, 0):
            raise InputError(f"{place} has an earlier time than the record before it")
        self._times[partition] = time_ms


def runnable(definition: TypeDefinition) -> SchemaError | None:
    """Return None if this process can fold by the definition, else why it cannot run its custom reducers."""
    try:
        Fold(definition)
    except SchemaError as error:
        return error
    return None


def _cut(text: str) -> Cut:
    cut = parse_cut(text)
    if str(cut) != text:
        raise InputError("a cut in it is not in full")
    return cut


def _refuse_order(place: str) -> NoReturn:
    raise InputError(f"{place} is out of order, or something before it is missing")
