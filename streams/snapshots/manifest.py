"""The manifest: the record that seals an epoch of one partition, and names exactly what a rebuild reads and checks.

Its bytes are deterministic CBOR, a map of the fields below, and a CRC-32C. Its name is its key: `epoch/`, partition
u16, observations offset u64, schemas offset u64, big-endian, so that names sort by their point. The digest
is the SHA-256 of the bytes; each manifest names that of the one before.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import cbor2

from refold.avro.canonical import encode
from refold.avro.errors import CorruptionError
from refold.streams.checksum import sealed, unsealed
from refold.streams.cut import FOLD_VERSION

FORMAT = 3
PREFIX = b"epoch/"
_NAME = struct.Struct(">HQQ")
KEY_BYTES = len(PREFIX) + _NAME.size
OFFSET_MAX = 2**64 - 1


class Epoch(NamedTuple):
    """A partition's sealed point: the next offsets of its observations and of `.schemas`."""

    partition: int
    offset: int
    schemas: int

    def __str__(self) -> str:
        return f"{self.partition}={self.offset}"

    @property
    def key(self) -> bytes:
        """The manifest's key."""
        return PREFIX + _NAME.pack(*self)


def epoch_of(key: bytes) -> Epoch:
    """Return the epoch of a manifest's key.

    Raises:
        CorruptionError: It is not a manifest's key.
    """
    try:
        return Epoch(*_NAME.unpack(key.removeprefix(PREFIX)))
    except struct.error as error:
        raise CorruptionError(f"{key!r:.80} is not a manifest's key; run refold verify") from error


class OffsetSpan(NamedTuple):
    """Offsets in the partition's `.snapshots`, start inclusive, end exclusive, and the SHA-256 over their records."""

    start: int
    end: int
    digest: bytes


class ColdSpan(NamedTuple):
    """A span of closed entities of one type and month of closing; a rebuild reads it when it is needed.

    Attributes:
        month: YYYY-MM (UTC) of the observation that closed them.
    """

    type_name: str
    month: str
    span: OffsetSpan


@dataclass(frozen=True, slots=True)
class Manifest:
    """One sealed epoch. `entities` and `observations` (distinct) count all, closed ones included.

    Attributes:
        ranges: What to read, base first, later ones win; the last is this epoch's own.
        slots: The digest of each of the partition's slots, ascending.
        root: The root over these, with the other slots empty.
        changed: The number of entities in the deltas since the base.
        previous: The digest of the manifest before, empty in the first.
        warm: The number of entities in the base.
        recorded_at: The greatest time of the records below the epoch's offset, in milliseconds since 1970.
        deadletters: The next offset of the partition of `.deadletters`.
        aside: The offsets below it whose observations were set aside, and are in no entity (avro/quarantine.py).
        cold, index, buckets: See streams/snapshots/closed_entities.py.
        records, size: How many records and bytes sealing it wrote.
    """

    log_id: bytes
    epoch: Epoch
    ranges: tuple[OffsetSpan, ...]
    entities: int
    observations: int
    slots: tuple[bytes, ...]
    root: bytes
    types: Mapping[str, bytes]
    recorded_at: int
    warm: int
    changed: int = 0
    cold: tuple[ColdSpan, ...] = ()
    index: tuple[OffsetSpan, ...] = ()
    buckets: tuple[OffsetSpan, ...] = ()
    deadletters: int = 0
    records: int = 0
    size: int = 0
    previous: bytes = b""
    fold_version: int = FOLD_VERSION
    aside: tuple[int, ...] = ()
    encoded: bytes = field(default=b"", compare=False, repr=False)

    @property
    def digest(self) -> bytes:
        """SHA-256 of the manifest's bytes."""
        return hashlib.sha256(self.encoded or encode_manifest(self)).digest()

    @property
    def is_base(self) -> bool:
        """Whether the epoch holds every open entity in its own range."""
        return len(self.ranges) == 1

    def leaves_out(self, aside: Iterable[int]) -> bool:
        """Whether it leaves out exactly these observations of its partition, considering only those below it."""
        return self.aside == tuple(sorted(each for each in aside if each < self.epoch.offset))

    @property
    def spans(self) -> tuple[OffsetSpan, ...]:
        """Every span that must be kept so that this epoch can be read."""
        return (*self.ranges, *(each.span for each in self.cold), *self.index, *self.buckets)


def encode_manifest(manifest: Manifest) -> bytes:
    """The stored form."""
    tree: dict[str, Any] = {
        "format": FORMAT,
        "log": manifest.log_id,
        "epoch": list(manifest.epoch),
        "ranges": [list(each) for each in manifest.ranges],
        "entities": manifest.entities,
        "observations": manifest.observations,
        "slots": b"".join(manifest.slots),
        "root": manifest.root,
        "types": dict(manifest.types),
        "recorded_at": manifest.recorded_at,
        "warm": manifest.warm,
        "changed": manifest.changed,
        "cold": [[each.type_name, each.month, list(each.span)] for each in manifest.cold],
        "index": [list(each) for each in manifest.index],
        "buckets": [list(each) for each in manifest.buckets],
        "deadletters": manifest.deadletters,
        "records": manifest.records,
        "size": manifest.size,
        "previous": manifest.previous,
        "fold": manifest.fold_version,
    }
    if manifest.aside:
        tree["aside"] = list(manifest.aside)
    return sealed(encode(tree))


def read_manifest(data: bytes, epoch: Epoch) -> Manifest:
    """Parse a manifest; CorruptionError if the bytes are not what was written for this epoch."""
    where = f"the manifest of epoch {epoch}"
    try:
        tree = cbor2.loads(unsealed(data, where))
        if tree["format"] != FORMAT:
            raise CorruptionError(f"{where} has format {tree['format']}, this release reads {FORMAT}")
        found = _manifest(tree, data)
        if not _is_whole(found):
            raise TypeError("its values are of other types")
    except CorruptionError:
        raise
    except (cbor2.CBORDecodeError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise CorruptionError(f"{where} cannot be read: {error}; run refold verify") from error
    if found.epoch != epoch:
        raise CorruptionError(f"{where} claims to be of epoch {found.epoch}; run refold verify")
    return found


def _manifest(tree: dict[str, Any], data: bytes) -> Manifest:
    slots = tree["slots"]
    return Manifest(
        log_id=tree["log"],
        epoch=Epoch(*tree["epoch"]),
        ranges=_spans(tree["ranges"]),
        entities=tree["entities"],
        observations=tree["observations"],
        slots=tuple(slots[at : at + 32] for at in range(0, len(slots), 32)),
        root=tree["root"],
        types=tree["types"],
        recorded_at=tree["recorded_at"],
        warm=tree["warm"],
        changed=tree["changed"],
        cold=tuple(ColdSpan(name, month, OffsetSpan(*span)) for name, month, span in tree["cold"]),
        index=_spans(tree["index"]),
        buckets=_spans(tree["buckets"]),
        deadletters=tree["deadletters"],
        records=tree["records"],
        size=tree["size"],
        previous=tree["previous"],
        fold_version=tree["fold"],
        aside=_offsets(tree.get("aside", [])),
        encoded=data,
    )


def _is_whole(found: Any) -> bool:
    """Whether each value has its type: the checksum shows that nothing was damaged, not who wrote it."""
    counts = (
        found.entities, found.observations, found.recorded_at, found.warm, found.changed, found.deadletters,
        found.records, found.size, found.fold_version, *(part for each in found.spans for part in each[:2]),
    )  # fmt: skip
    parts = (
        found.log_id, found.root, found.previous, *found.slots, *found.types.values(),
        *(each.digest for each in found.spans),
    )  # fmt: skip
    texts = (*found.types, *(part for each in found.cold for part in (each.type_name, each.month)))
    return (
        all(type(count) is int and 0 <= count <= OFFSET_MAX for count in counts)
        and all(isinstance(part, bytes) for part in parts)
        and all(isinstance(text, str) for text in texts)
    )


def _offsets(given: object) -> tuple[int, ...]:
    if not isinstance(given, list) or any(type(each) is not int for each in given):
        raise TypeError("the observations that it leaves out are not offsets")
    return tuple(given)


def _spans(given: list[list[Any]]) -> tuple[OffsetSpan, ...]:
    return tuple(OffsetSpan(*each) for each in given)
