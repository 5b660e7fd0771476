"""Compares the sealed epochs of one partition, oldest first, with the log folded to each epoch's point.

Checks for each epoch:
1. its manifest can be read, and fits the log and the manifests before it;
2. every record of every span exists and is intact; each span is read once, however many epochs share it;
3. every entity in a span that is new in this epoch equals, byte for byte, the state to which the log folds at this
   point, unless a later span has the entity again; entities in the base are open, entities in a cold span were closed
   in its month;
4. nothing is missing: a delta on the previous epoch has exactly the entities with a distinct observation since then,
   any other epoch has every entity, open in its ranges or closed in its index and cold spans;
5. the numbers of entities and observations, the slots, the root, and the buckets below the closed entities are those of
   the log.
If a type's custom code as of an epoch is missing, its entities are not compared, and the epoch is checked against its
own digests. An epoch that leaves out other observations than those set aside now is not used by any reader, and is not
checked. Records that no manifest names were left by a writer that ended, and are not mismatches.

Checks for each manifest, without the records that it names:
1. It can be read: its checksum is right, and it names its own epoch, log and fold.
2. `types` are the definitions below its offset of `.schemas`; `recorded_at` is that of the record before its offset;
   `deadletters` is at most the number of dead letters.
3. A delta based on the manifest before it has that one's ranges, its closed entities and its `previous`. The manifest
   before may have been removed; a delta names one in any case.
4. Its slots are the partition's, and its root is the root over them.

Checks for each span: its records exist and are intact, and have entities by place and key. A damaged record is named by
its place, and its neighbours are still read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from refold.avro.errors import CorruptionError, StorageError
from refold.avro.quarantine import OBSERVATIONS
from refold.reducers.entity import stored_hash, stored_highest
from refold.streams.cut import FOLD_VERSION, Cut
from refold.streams.digest import Digests, root_over
from refold.streams.log.port import LogReader, Mismatch
from refold.streams.partitioner import BUCKETS, place_of, slots_of
from refold.streams.snapshots.chunk import Chunk
from refold.streams.snapshots.closed_entities import ClosingRule, closed_month, closings, take_buckets
from refold.streams.snapshots.manifest import Manifest, OffsetSpan, read_manifest
from refold.streams.snapshots.read import read_epoch
from refold.streams.snapshots.spill import ChunkStore
from refold.streams.snapshots.store import PINNED_UNREADABLY
from refold.streams.verify.refold import Refold
from refold.streams.verify.table import compare

Entry = tuple[str, str, bytes, bytes]
"""(place of the record, entity, state hash, encoded entity). In the index of closed entities the last is empty."""


class SpanReader:
    """Reads the spans of one partition. `problems` has the mismatches found since it was last emptied."""

    def __init__(self, log: LogReader, partition: int) -> None:
        self._log = log
        self._partition = partition
        self._slots = frozenset(slots_of(partition, log.partitions))
        self.problems: list[Mismatch] = []

    def records(self, span: OffsetSpan) -> Iterator[tuple[str, bytes]]:
        """Yield (place, bytes) of the existing records; after the last one, check the span's digest."""
        digest, expected, before = hashlib.sha256(), span.start, len(self.problems)
        for offset, data in self._log.snapshots.records(self._partition, span.start, span.end):
            self._missing(expected, offset)
            expected = offset + 1
            digest.update(data)
            yield self._place(offset), data
        self._missing(expected, span.end)
        if len(self.problems) == before and digest.digest() != span.digest:
            self._say(f"{self._place(span.start)} to {span.end - 1}", "not what was sealed")

    def entries(self, span: OffsetSpan) -> Iterator[Entry]:
        """Yield the entities, or the entries of the index, of a span in order."""
        last_place = -1
        for place, data in self.records(span):
            try:
                chunk = Chunk(data, place)
            except CorruptionError as error:
                self._say(place, str(error))
                continue
            for group, at in enumerate(chunk.places):
                if at <= last_place or at >> 8 not in self._slots:
                    self._say(place, f"the bucket {at >> 8}/{at & 0xFF} does not belong there")
                last_place = at
                yield from self._members(place, chunk, group)

    def _members(self, place: str, chunk: Chunk, group: int) -> Iterator[Entry]:
        at, last_key = chunk.places[group], b""
        for (key, state_hash), (_, body) in zip(chunk.hashes(group), chunk.members(group), strict=True):
            name = key.decode(errors="replace")
            if key <= last_key or place_of(name) != at:
                self._say(place, f"is in the wrong place of bucket {at >> 8}/{at & 0xFF}", name)
            elif body and stored_hash(body) != state_hash:
                self._say(place, "has another state hash next to it than its own", name)
            last_key = key
            yield place, name, state_hash, body

    def _missing(self, expected: int, found: int) -> None:
        if found != expected:
            to = "" if found == expected + 1 else f" to {found - 1}"
            self._say(f"{self._place(expected)}{to}", "missing")

    def _say(self, place: str, problem: str, entity: str = "") -> None:
        self.problems.append(Mismatch(place, problem, entity))

    def _place(self, offset: int) -> str:
        return f"snapshots {self._partition}={offset}"


def place_of_manifest(manifest: Manifest) -> str:
    """Return the manifest's name in mismatches."""
    return f"manifests {manifest.epoch}"


def check_manifest(log: LogReader, manifest: Manifest, before: Manifest | None, deadletters: int) -> Iterator[Mismatch]:
    """Check a manifest.

    Args:
        log: the log.
        manifest: the manifest.
        before: the readable manifest before it, if any.
        deadletters: the partition's next offset of dead letters.
    """
    problems = [*_alone(log, manifest, deadletters), *_chain(manifest, before)]
    return (Mismatch(place_of_manifest(manifest), problem) for problem in problems)


def follows(manifest: Manifest, before: Manifest | None) -> bool:
    """Return whether a manifest is a delta whose ranges begin with those of `before`."""
    if before is None or manifest.is_base:
        return False
    return manifest.ranges[: len(before.ranges)] == before.ranges and len(manifest.ranges) > len(before.ranges)


def _alone(log: LogReader, manifest: Manifest, deadletters: int) -> Iterator[str]:
    partition, offset, schemas = manifest.epoch
    if manifest.log_id != log.log_id:
        yield f"of another log, {manifest.log_id.hex()}"
    if manifest.fold_version != FOLD_VERSION:
        yield f"folded by fold version {manifest.fold_version}; this release folds by {FOLD_VERSION}"
    if dict(manifest.types) != log.registry.fingerprints(schemas):
        yield f"its types are not those registered below {schemas}"
    if log.recorded_below(partition, offset) != manifest.recorded_at:
        yield f"its recorded_at is not that of the record {partition}={offset - 1}"
    if manifest.deadletters > deadletters:
        yield f"counts {manifest.deadletters} dead letters; the log has {deadletters} there"
    slots = slots_of(partition, log.partitions)
    if len(manifest.slots) != len(slots):
        yield f"has {len(manifest.slots)} slots; the partition has {len(slots)}"
    elif manifest.root != root_over(dict(zip(slots, manifest.slots, strict=True)), manifest.entities):
        yield "its root is not the root over its slots"
    if any(span.start > span.end for span in manifest.spans):
        yield "has a span that ends before it begins"
    if not manifest.ranges or any(
        one.end > two.start for one, two in zip(manifest.ranges, manifest.ranges[1:], strict=False)
    ):
        yield "its ranges do not follow one another"
    if bool(manifest.cold) != bool(manifest.buckets) or bool(manifest.cold) != bool(manifest.index):
        yield "names closed entities without their index and buckets, or these without closed entities"


def _chain(manifest: Manifest, before: Manifest | None) -> Iterator[str]:
    if manifest.is_base:
        if manifest.changed:
            yield f"a base, and counts {manifest.changed} changed entities"
        return
    if not manifest.previous:
        yield "a delta, and names no manifest before it"
    if before is None or not follows(manifest, before):
        return
    if (manifest.warm, manifest.cold, manifest.index, manifest.buckets) != (
        before.warm, before.cold, before.index, before.buckets
    ):  # fmt: skip
        yield f"a delta onto the epoch {before.epoch}, and has another base or other closed entities"
    if len(manifest.ranges) == len(before.ranges) + 1 and manifest.previous != before.digest:
        yield f"`previous` is not the digest of the manifest {before.epoch}, onto which it is a delta"


SHOWN = 8


@dataclass(slots=True)
class _SpanContent:
    """The content of a span that was read: state hashes by entity.

    Attributes:
        whole: Whether no damage was found in it.
    """

    hashes: dict[str, bytes] = field(default_factory=dict)
    whole: bool = True


def check_epochs(log: LogReader, partition: int, cut: Cut, refold: Refold) -> Iterator[Mismatch]:
    """Check every epoch of a partition below a cut at the log's end.

    Args:
        log: The log.
        partition: The partition.
        cut: The log's end.
        refold: The fold of the partition from nothing; it is moved forward to each epoch.
    """
    deadletters = max((each.offset + 1 for each in log.deadletters() if each.partition == partition), default=0)
    spans = _Spans(log, partition, refold)
    before: Manifest | None = None
    for epoch in log.snapshots.epochs(partition):
        place = f"manifests {epoch}"
        if not 0 < epoch.offset <= cut.offsets[partition] or epoch.schemas > cut.schemas:
            yield Mismatch(place, f"no point of this log: offset {epoch.offset}, {epoch.schemas} definitions")
            continue
        try:
            manifest = log.snapshots.manifest(epoch)
        except StorageError as error:
            yield Mismatch(place, str(error))
            continue
        if not manifest.leaves_out(log.registry.rulings.of(OBSERVATIONS, partition)):
            continue  # no reader starts from it
        yield from check_manifest(log, manifest, before, deadletters)
        refold.to(epoch.offset, epoch.schemas)
        yield from spans.check(manifest, before)
        yield from _check_digests(log, manifest, refold)
        before = manifest


def check_removed(log: LogReader) -> Iterator[Mismatch]:
    """Check that pins name existing epochs, and that removed manifests with remaining records can be read."""
    kept = {epoch for partition in range(log.partitions) for epoch in log.snapshots.epochs(partition)}
    for tomb in log.snapshots.tombstones():
        kept.add(tomb.epoch)  # garbage collection buries a damaged epoch before it unpins it
        try:
            read_manifest(tomb.data, tomb.epoch)
        except CorruptionError as error:
            yield Mismatch(f"tombs {tomb.epoch}", str(error))
    for pin in log.snapshots.pins():
        if pin.epoch not in kept and pin.pinned_at != PINNED_UNREADABLY:
            yield Mismatch(f"pins {pin.epoch}", "pins an epoch that is not there")


def _check_digests(log: LogReader, manifest: Manifest, refold: Refold) -> Iterator[Mismatch]:
    place = place_of_manifest(manifest)
    if refold.gone:
        try:
            read_epoch(log.snapshots, manifest, log.partitions, ChunkStore())
        except StorageError as error:
            yield Mismatch(place, str(error))
        return
    counted = {"entities": refold.entities, "observations": refold.observations}
    for part, expected in counted.items():
        if getattr(manifest, part) != expected:
            yield Mismatch(place, f"counts {getattr(manifest, part)} {part}; the log has {expected} there")
    digests = refold.digests()
    slots = zip(slots_of(manifest.epoch.partition, log.partitions), manifest.slots, strict=False)
    wrong = [str(slot) for slot, digest in slots if digests.slot(slot) != digest]
    if wrong:
        shown = ", ".join(wrong[:SHOWN]) + (f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else "")
        yield Mismatch(place, f"the log folds to other digests than it has of the slots {shown}")


class _Spans:
    """The spans of the epoch that was checked last."""

    def __init__(self, log: LogReader, partition: int, refold: Refold) -> None:
        self._log = log
        self._partition = partition
        self._refold = refold
        self._reader = SpanReader(log, partition)
        self._held: dict[OffsetSpan, _SpanContent] = {}

    def check(self, manifest: Manifest, before: Manifest | None) -> Iterator[Mismatch]:
        """Check the records of an epoch; `before` is the epoch that was checked last."""
        new = [span for span in manifest.ranges if span not in self._held]
        closing = closings(self._log.registry, manifest.epoch.schemas)
        for number in range(len(manifest.ranges) - 1, -1, -1):
            if manifest.ranges[number] in new:
                yield from self._range(manifest.ranges, number, closing)
        for index in manifest.index:
            if index not in self._held:
                held = self._held[index] = _SpanContent()
                held.hashes.update((name, state_hash) for _, name, state_hash, _ in self._reader.entries(index))
                yield from self._reported(held)
        yield from self._cold(manifest, closing)
        for span in manifest.buckets:
            if span not in self._held:
                yield from self._buckets(manifest, span)
        if manifest.ranges and all(self._held[span].whole for span in manifest.spans):
            yield from self._counts(manifest)
            if follows(manifest, before) and before is not None:
                yield from self._delta(manifest, before)
            else:
                yield from self._all(manifest)
        self._held = {span: self._held[span] for span in manifest.spans}

    def _reported(self, held: _SpanContent) -> Iterator[Mismatch]:
        """Yield the mismatches found in the span that was read last."""
        held.whole = not self._reader.problems
        yield from self._reader.problems
        self._reader.problems.clear()

    def _range(self, ranges: Sequence[OffsetSpan], number: int, closing: dict[str, ClosingRule]) -> Iterator[Mismatch]:
        held = self._held[ranges[number]] = _SpanContent()
        later = [self._held[span].hashes for span in ranges[number + 1 :]]
        for place, name, state_hash, body in self._reader.entries(ranges[number]):
            held.hashes[name] = state_hash
            if self._refold.is_gone(name) or any(name in each for each in later):
                continue
            found = list(self._entity(place, name, body))
            if not (found or number) and closing and closed_month(closing, name.encode(), body) is not None:
                found = [Mismatch(place, "closed, and is among the open ones", name)]
            yield from found
        yield from self._reported(held)

    def _cold(self, manifest: Manifest, closing: dict[str, ClosingRule]) -> Iterator[Mismatch]:
        """Check the new spans of closed entities. If an entity closed several times, any of them may have older bodies:
        a mismatch of a body counts unless another body is the one in the index."""
        doubtful: list[tuple[str, bytes, list[Mismatch]]] = []
        for cold in manifest.cold:
            if cold.span in self._held:
                continue
            held = self._held[cold.span] = _SpanContent()
            for place, name, state_hash, body in self._reader.entries(cold.span):
                held.hashes[name] = state_hash
                if self._refold.is_gone(name) or any(name in self._held[span].hashes for span in manifest.ranges):
                    continue
                found = list(self._entity(place, name, body))
                if not found and closed_month(closing, name.encode(), body) != (cold.type_name, cold.month):
                    found = [Mismatch(place, f"not closed in {cold.month}, or not of type {cold.type_name}", name)]
                if found:
                    doubtful.append((name, state_hash, found))
            yield from self._reported(held)
        closed = self._closed_index(manifest) if doubtful else {}
        for name, state_hash, found in doubtful:
            present = closed.get(name)
            is_old = present not in (None, state_hash) and any(
                self._held[each.span].hashes.get(name) == present for each in manifest.cold
            )
            if not is_old:
                yield from found

    def _closed_index(self, manifest: Manifest) -> dict[str, bytes]:
        """Return the index of closed entities: each entity's state hash."""
        closed: dict[str, bytes] = {}
        for span in manifest.index:
            closed.update(self._held[span].hashes)
        return closed

    def _entity(self, place: str, name: str, body: bytes) -> Iterator[Mismatch]:
        expected = self._refold.layers.get(name)
        if expected is None:
            yield Mismatch(place, "in a snapshot, but no observation of it is in the log below that", name)
        elif body != expected:
            yield from compare(place, name, body, expected)

    def _buckets(self, manifest: Manifest, span: OffsetSpan) -> Iterator[Mismatch]:
        """Check the digests below the closed entities, except for buckets that a later delta changed."""
        held = self._held[span] = _SpanContent()
        slots = slots_of(self._partition, self._log.partitions)
        found, mine = Digests(), self._refold.digests()
        try:
            take_buckets(found, slots, self._reader.records(span))
        except (CorruptionError, IndexError) as error:
            yield Mismatch(
                f"snapshots {self._partition}={span.start} to {span.end - 1}", f"no digests of buckets: {error}"
            )
            self._reader.problems.clear()
            held.whole = False
            return
        yield from self._reported(held)
        changed = {place_of(name) for each in manifest.ranges[1:] for name in self._held[each].hashes}
        for slot in slots if held.whole and not self._refold.gone else ():
            if found.buckets(slot) == mine.buckets(slot):
                continue
            for place in range(slot * BUCKETS, (slot + 1) * BUCKETS):
                if place not in changed and found.bucket(place) != mine.bucket(place):
                    problem = f"the bucket {slot}/{place % BUCKETS} has another digest than the log folds to"
                    yield Mismatch(f"snapshots {self._partition}={span.start} to {span.end - 1}", problem)

    def _counts(self, manifest: Manifest) -> Iterator[Mismatch]:
        base, *deltas = (len(self._held[span].hashes) for span in manifest.ranges)
        for part, given, found in (("warm", manifest.warm, base), ("changed", manifest.changed, sum(deltas))):
            if given != found:
                yield Mismatch(place_of_manifest(manifest), f"counts {given} {part} entities; its ranges have {found}")

    def _delta(self, manifest: Manifest, before: Manifest) -> Iterator[Mismatch]:
        place, start = place_of_manifest(manifest), before.epoch.offset
        has = {name for span in manifest.ranges[len(before.ranges) :] for name in self._held[span].hashes}
        changed = set()
        for name in self._refold.touched:
            packed = None if self._refold.is_gone(name) else self._refold.layers.get(name)
            if packed is not None and stored_highest(packed) >= start:
                changed.add(name)
        for name in sorted(changed - has):
            yield Mismatch(place, f"changed since the epoch {before.epoch}, and is not in the delta", name)
        for name in sorted(has - changed):
            if not self._refold.is_gone(name):
                yield Mismatch(place, f"in the delta, and did not change since the epoch {before.epoch}", name)

    def _all(self, manifest: Manifest) -> Iterator[Mismatch]:
        place = place_of_manifest(manifest)
        ranges = [self._held[span].hashes for span in manifest.ranges]
        closed = self._closed_index(manifest)
        bodies: set[tuple[str, bytes]] = set()
        for cold in manifest.cold:
            bodies.update(self._held[cold.span].hashes.items())
        for name, packed in self._refold.layers.rows():
            if self._refold.is_gone(name) or any(name in each for each in ranges):
                closed.pop(name, None)
                continue
            found = closed.pop(name, None)
            if found is None:
                yield Mismatch(place, "missing: neither among its open nor its closed entities", name)
            elif found != stored_hash(packed):
                yield Mismatch(place, "has another state hash in the index of closed entities", name)
            elif (name, found) not in bodies:
                yield Mismatch(place, "in the index of closed entities, and in none of their spans as it is now", name)
        for name in sorted(closed):
            if not self._refold.is_gone(name):
                yield Mismatch(place, "in the index of closed entities, but no observation of it is in the log", name)
