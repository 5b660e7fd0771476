"""The format of an archive: a whole log as one Avro container file, its items in the order of the log.

An item is one record of a union. The items are, in this order:
1. one `header`: the format's number, the cut of everything archived (with the origin's log id), the time of archiving;
2. `definition`, `content` and `observation` items, by recorded_at and registered_at as far as the order within each
   partition and of the definitions allows. A definition is before what was recorded in the same millisecond, and before
   every observation that it decodes. Each partition's observations are by offset without gaps. A content is somewhere
   before the first observation that names it. An offset without an observation, such as one with a verdict, is an
   `observation` with its recorded_at, an empty entity, an id of zeros and no data;
3. `deadletter` and `marker` items;
4. one `end`: the number of items of each kind, and the SHA-256 over the deterministic CBOR of [kind, its fields in
   order] of every item before it. Nothing follows the end, so a truncated or changed file is detected.

Derived data is not in an archive: tables, changes, snapshots.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import IO, Any, NamedTuple, TypeAlias

import cbor2

from refold.avro.derive import LONG, TEXT, record
from refold.avro.nodes import ID, emit, nullable
from refold.streams.log.port import DeadLetter, Marked, Record

FORMAT = 1
NAME = "refold.archive.item"
BLOCK_BYTES = 256 << 10
SYNC_BYTES = 16
_INT = {"type": "int"}
_BYTES = {"type": "bytes"}


class Header(NamedTuple):
    """The first item.

    Attributes:
        format: The log's FORMAT.
        cut: The text of the archived point.
        archived_at: In milliseconds since 1970.
        forked_from: The id of the log from which the archived log was forked, if it was.
    """

    format: int
    cut: str
    archived_at: int
    forked_from: bytes | None


class Definition(NamedTuple):
    """A type definition at its offset of `.schemas`, as JSON text; empty if that offset registers nothing.

    registered_at in milliseconds.
    """

    offset: int
    registered_at: int
    definition: str


class Content(NamedTuple):
    """A content that observations name by its SHA-256."""

    sha256: bytes
    content: bytes


class End(NamedTuple):
    """The number of items of each kind before it, and the SHA-256 over them."""

    definitions: int
    observations: int
    contents: int
    deadletters: int
    markers: int
    sha256: bytes


Item: TypeAlias = Header | Definition | Content | Record | DeadLetter | Marked
Ended: TypeAlias = Item | End

KINDS: dict[str, type[Any]] = {
    "header": Header,
    "definition": Definition,
    "content": Content,
    "observation": Record,
    "deadletter": DeadLetter,
    "marker": Marked,
    "end": End,
}
_FIELDS: dict[str, dict[str, Any]] = {
    "header": {"format": _INT, "cut": TEXT, "archived_at": LONG, "forked_from": nullable(_BYTES)},
    "definition": {"offset": LONG, "registered_at": LONG, "definition": TEXT},
    "content": {"sha256": ID, "content": _BYTES},
    "observation": {
        "partition": _INT, "offset": LONG, "recorded_at": LONG, "entity": TEXT, "id": ID, "data": _BYTES,
    },
    "deadletter": {"partition": _INT, "offset": LONG, "data": _BYTES},
    "marker": {"name": TEXT, "cut": TEXT, "marked_at": LONG},
    "end": {
        "definitions": LONG, "observations": LONG, "contents": LONG, "deadletters": LONG, "markers": LONG,
        "sha256": ID,
    },
}  # fmt: skip
_BRANCHES = {kind: record(f"refold.archive.{kind}", **fields) for kind, fields in _FIELDS.items()}
SCHEMA = emit(record(NAME, item=list(_BRANCHES.values())))
_KIND_OF: dict[type[Any], str] = {each: kind for kind, each in KINDS.items()}


class Tally:
    """Counts and hashes items while they are written or read."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(KINDS, 0)
        self._digest = hashlib.sha256()

    def take(self, item: Item) -> None:
        """Add the next item before the end."""
        kind = _KIND_OF[type(item)]
        self.counts[kind] += 1
        self._digest.update(cbor2.dumps([kind, *item]))

    def end(self) -> End:
        """Return the end item for the items so far."""
        found = self.counts
        return End(
            found["definition"], found["observation"], found["content"], found["deadletter"], found["marker"],
            self._digest.digest(),
        )  # fmt: skip


def write_items(file: IO[bytes], items: Iterable[Item], sync_marker: bytes) -> End:
    """Write an archive of these items, and its end. Equal items and sync markers give equal files.

    Args:
        file: A file that is open for writing bytes.
        items: What the archive holds, in its order.
        sync_marker: SYNC_BYTES bytes that separate the blocks.
    """
    import fastavro

    tally = Tally()

    def data() -> Iterator[dict[str, Any]]:
        for item in items:
            tally.take(item)
            yield _datum(item)
        yield _datum(tally.end())

    schema = fastavro.parse_schema(SCHEMA)
    fastavro.writer(file, schema, data(), codec="deflate", sync_interval=BLOCK_BYTES, sync_marker=sync_marker)
    return tally.end()


def _datum(item: Ended) -> dict[str, Any]:
    return {"item": (f"refold.archive.{_KIND_OF[type(item)]}", item._asdict())}


def item_of(datum: Any) -> Ended:
    """Convert a datum, read with its record's name, to an item."""
    name, fields = datum["item"]
    found: Ended = KINDS[name.removeprefix("refold.archive.")](**fields)
    return found
