"""Finds the native kernel: refold_kernel, a separate distribution (kernel/).

It produces the same bytes as Python, and is optional. It is used when it is installed, has this release's FORMAT, and
REFOLD_KERNEL is not 0.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

from refold.avro.observation import Encoded, Link, Observation, Source

FORMAT = 15
"""The FORMAT that the kernel must have. It changes with the interface and with the stored forms that the kernel
writes.
"""
SWITCH = "REFOLD_KERNEL"
MODULE = "refold_kernel"

NodeLayout = tuple[Any, ...]
"""The layout of one schema node: the name of its kind, then the kind's parameters (kernel/src/given.rs)."""
FieldLayout = tuple[str, str, int, int, NodeLayout, NodeLayout]
"""A field's first name, its reducer, the limit of append, the maximum size of a value in bytes before it must be a
Blob, and the layouts of its values in patches and in mutations, or null.
"""
StoredRecords = tuple[str, bytes | None, Sequence[Any]]
"""An entity's name, its stored state, and its records in log order."""
Replayed = tuple[bytes | None, int]
"""An entity's new state, or None if no record was new, and the number of new records."""
Doubtful = tuple[int, Sequence[tuple[int, bytes]]]
"""An entity's place among those given, and the places and timeline keys of its records that only the timeline can
recognise as new or repeated.
"""
PartitionOutcome = tuple[list[tuple[bytes, bytes, bytes]], tuple[int, int, int]]
"""Of one partition: the key, state and framed change of each changed entity, and the numbers of new entities, of
observations, and of late ones.
"""
FoldedGroups = tuple[
    tuple[list[bytes], list[bytes], list[bytes], list[bytes], list[bytes]], list[PartitionOutcome], list[int],
    list[Doubtful], int,
]  # fmt: skip
"""The rows of the states, the timeline, the arrivals, the ids and the checkpoints, as alternating keys and values; ids
are keys alone. Then the outcome of each partition; the entities that are not folded, and among these the doubtful ones;
and the number of records of the folded ones.
"""
ReadParts = tuple[str, int, int, tuple[str, str, str, str, int], tuple[bytes, ...], dict[str, Any], str, bytes]
"""An assert's entity, observed_at, priority, source, causes, patch, subject and id."""


NewParts = tuple[str, int, str, int, Source, Iterable[str | bytes], Mapping[str, Any], Link | None, str]
"""A new observation's entity, observed_at, kind, priority, source, causes, patch, link and subject."""
IndexRows = tuple[list[bool], list[bytes], list[bytes], list[bytes], list[bytes], list[bytes]]
"""Whether each record is confirmed; then, of the confirmed ones, the keys and the values in the timeline, those in the
arrivals, and the keys in the index of ids.
"""
StoredChange = tuple[str, bytes | None, Sequence[Any], bytes]
"""An entity's name, its state before a change, the records of the change in log order, and the stored change."""
ChangeHead = tuple[str, bytes, int, int, int]
"""A change's entity, the fingerprint of its definition, its versions before and after, and its `through`."""
StatedParts = tuple[list[Encoded], list[tuple[bytes, bytes]]]
"""Observations, and the contents that they name, each after its SHA-256."""
NumberedRecords = tuple["DecidedRecords", list[bytes], dict[int, int]]
"""Records; the keys and values, in turns, of their rows in the order of the keys; the next offset by partition."""
SlotDigests = list[tuple[int, bytes]]
"""Each slot with entities, and the digests of its buckets."""
SpanText = tuple[str, str, str]
"""A span's trace id and id in hex, and its canonical JSON."""
ScopeParts = tuple[str, str, tuple[str, StatedParts] | None, int, StatedParts, list[SpanText]]
"""The canonical JSON of a resource and of a scope; the digest of both with their observation, if the kernel made it;
the number of spans that were observed, and their observations; the spans that Python has to observe.
"""


class ObservationReader(Protocol):
    """Reads the observations of one type version."""

    def read(self, data: bytes) -> ReadParts | None:
        """The observation in framed bytes; None if Python has to read them."""

    def doubtful(self, patch: dict[str, Any]) -> list[str] | None:
        """The names of the values of a patch, by their fields' first names, that Python has to check; the others are
        canonical as given. None if Python has to check the patch as a whole.
        """

    def encode(self, observation: Observation) -> tuple[bytes, bytes] | None:
        """The framed bytes of a checked observation, and its id; None if Python has to encode it."""

    def encode_new(self, parts: NewParts, is_patch_checked: bool) -> tuple[bytes, bytes] | None:
        """Like `encode`, of parts that are not checked, or of which only the patch is checked.

        None also if a part is invalid, or is not canonical as it is given.
        """

    def id_of(self, data: bytes) -> bytes | None:
        """The id of a checked observation from its framed bytes; None if Python has to compute it."""


class SpanObserver(Protocol):
    """Observes spans of OTLP as agents/adapters/otlp/observed.py does."""

    def observe(self, body: bytes) -> tuple[list[ScopeParts], int] | None:
        """Decode a request as `spans_of`, and observe its spans. The GIL is released during the call.

        Returns:
            The spans of each scope. Then the number of spans without valid ids. None if Python has to decode the
            request.
        """


class RecordDecider(Protocol):
    """Decides the records of one partition as streams/worker/verdicts.py does."""

    def decide(self, raws: Iterable[Any], recorded_at: int) -> DecidedRecords:
        """Decide each record, up to the first of an unusual form. The GIL is released during the call.

        Args:
            raws: The fetched records: offset, timestamp, key, value, headers.
            recorded_at: The running maximum of the timestamps before them, in milliseconds.

        Returns:
            The records, and which of them are plain observations.
        """


class DecidedRecords(Protocol):
    """Records in log order, kept by the kernel: observations, and fetched records that Python has to decide.

    Attributes:
        is_plain: Whether all of them are observations.
        size_bytes: The total size of the observations in bytes.
        last: The parts of the `Record` of the last observation; None without one.
    """

    is_plain: bool
    size_bytes: int
    last: tuple[Any, ...] | None

    def __len__(self) -> int: ...

    def records(self) -> list[tuple[Any, ...] | None]:
        """The parts of the `Record` of each observation, and None for each other record."""


class GroupedRecords(Protocol):
    """The observations of a batch, grouped by entity. It numbers the entities from 0.

    Attributes:
        types: The names of the entities' types.
    """

    types: list[str]

    def keys(self) -> list[bytes]:
        """The key of each entity's state, in the order of the entities' first records."""

    def records(self, entities: Sequence[int]) -> list[list[tuple[Any, ...]]]:
        """The parts of the `Record`s of some entities, in log order.

        Args:
            entities: The numbers of the entities.
        """

    def fold(
        self, folders: Sequence[TypeFolder | None], keys: list[bytes], stored: Sequence[bytes | None],
        through: dict[int, int], told: Mapping[int, Mapping[int, bool]] | None,
    ) -> FoldedGroups | None:  # fmt: skip
        """Fold the entities. The GIL is released during the call.

        Args:
            folders: The folder of each type of `types`; None if Python folds it.
            keys: The keys, as `keys` returned them.
            stored: The states under these keys.
            through: The batch's next offset by partition.
            told: Fold only these entities, for whose records, by their place, the timeline told whether it holds them;
                None to fold all.

        Returns:
            What the batch changes; None if the kernel panicked, which only a defect causes.
        """


class RecordChecker(Protocol):
    """Confirms stored records. Python has to check those that are not confirmed."""

    def confirm(self, records: Sequence[Any]) -> list[bool]:
        """Whether each record is an observation with its own id, in its own partition, that names no contents and
        retracts nothing. The GIL is released during the call.
        """

    def rows(self, records: Sequence[Any]) -> IndexRows:
        """Like `confirm`, with the rows of the confirmed records in the indexes."""


class TypeFolder(Protocol):
    """Folds entities of one type version."""

    fields_folded: int

    def replay(self, entities: Sequence[StoredRecords]) -> list[Replayed | None]:
        """Fold the records of some entities into their states alone; None if the entity is left to Python."""

    def check_changes(self, changes: Sequence[StoredChange]) -> list[bytes | None]:
        """The state after each stored change that is what its records fold to, byte for byte; None if Python has to
        check the change. The GIL is released during the call.
        """

    def checkpoints(self, entities: Sequence[tuple[str, Sequence[Any], Sequence[int]]]) -> list[list[bytes] | None]:
        """The checkpoints of entities, folded from nothing; None if the entity is left to Python.

        Args:
            entities: Each one's name, its distinct records in log order, and the offsets of its checkpoints, ascending.
        """


class BaseWriter(Protocol):
    """Writes a table's rows as chunks of `.snapshots`: streams/snapshots/chunk.py."""

    def add(self, rows: Sequence[tuple[bytes, bytes]]) -> list[bytes] | None:
        """Add rows (key, stored state) in the order of their keys. The GIL is released during the call.

        Returns:
            The chunks that are full; None if Python has to write them, because a row is damaged or out of order.
        """

    def end(self) -> tuple[bytes | None, int, list[tuple[int, bytes, list[bytes]]]] | None:
        """End the table.

        Returns:
            The last chunk, or None if there is nothing left for one; the number of entities; for each slot with
            entities its number, the digests of its buckets, and their preimages. None as for `add`.
        """


class DeltaWriter(Protocol):
    """Writes the entities that changed as chunks of `.snapshots`."""

    def add(self, rows: Sequence[tuple[bytes, bytes]]) -> tuple[list[bytes], list[int], list[bytes]] | None:
        """Add rows (key, stored state) of whole places, in the order of their keys. The GIL is released for many.

        Returns:
            The chunks that are full; places; and for each place what its bucket's digest covers of the given
            entities, or only of those that changed. None if Python has to write them, because a row is damaged or out
            of order.
        """

    def end(self) -> tuple[bytes | None, int] | None:
        """End the delta.

        Returns:
            The last chunk, or None if there is nothing left for one, and the number of changed entities. None as for
            `add`.
        """


class SpanMerger(Protocol):
    """Merges the spans of an epoch, the latest first, to the chunks of a base (streams/snapshots/base_merge.py)."""

    def add(self, given: Sequence[tuple[int, bytes | None]]) -> tuple[list[bytes], list[int]] | None:
        """Add the next chunk of some spans.

        Args:
            given: Numbers of spans, each with the next chunk, or None if the span has ended. The first call has all.

        Returns:
            The chunks of the base that are full, and the numbers of the spans whose next chunk is needed; None if a
            chunk is damaged.
        """

    def end(self) -> tuple[bytes | None, int, SlotDigests, list[bytes]] | None:
        """End the base.

        Returns:
            The last chunk, or None if there is nothing left for one; the number of entities; the digests of each slot
            with entities; the SHA-256 of each span. None if a span has not ended.
        """


class LayerMerger(Protocol):
    """Merges the layers of an epoch, the latest first (streams/snapshots/layers.py).

    A group is what one chunk holds of one place.
    """

    def add(self, data: bytes, first: int) -> bool:
        """Add the layers' next chunk.

        Args:
            data: The chunk.
            first: The number of its first group.

        Returns:
            False if Python has to merge all chunks, because this one is damaged.
        """

    def groups(self) -> tuple[dict[int, int], dict[int, int]]:
        """The newest group of each place, and the next older group of each group that has one."""

    def put(self, places: Sequence[int], preimages: Sequence[bytes]) -> bool:
        """Put entities over all others. No chunk may be added afterwards.

        Args:
            places: Their places.
            preimages: For each place what its bucket's digest covers of them.

        Returns:
            False if Python has to compute the digests from now on.
        """

    def digests(self) -> SlotDigests | None:
        """The digests of each slot of which a bucket changed since the last call; None if Python has to compute them.
        The GIL is released if they are many.
        """

    def size(self) -> tuple[int, int]:
        """The number of places, and of the bytes that their digests cover."""


Reader = ObservationReader
"""Defined under a name that no method of the kernel has."""


class Kernel(Protocol):
    """The kernel's module. A frame is the first bytes of framed messages."""

    def panics(self) -> int:
        """The number of panics in this process. After each, Python did the work. Every panic is a defect."""

    def ObservationReader(  # noqa: N802
        self, type_name: str, frame: bytes, fields: Sequence[FieldLayout]
    ) -> ObservationReader:
        """The reader of a type version."""

    def RecordDecider(  # noqa: N802
        self, readers: Sequence[Reader], partition: int, partitions: int
    ) -> RecordDecider:
        """The decider for the records of a partition that these readers read."""

    def given(self, checked: list[Any]) -> DecidedRecords | None:
        """Records that Python checked, each the first item of a tuple; None if one of them has an unusual form."""

    def numbered(
        self, batch: list[Any], ends: Mapping[int, int], recorded_at: int, partitions: int
    ) -> NumberedRecords | None:
        """Observations that the owner of a log appends, with their partitions and offsets.

        Args:
            batch: Tuples that begin with the entity, the id and the framed bytes.
            ends: The next offset by partition.
            recorded_at: The time of all of them, in milliseconds since 1970.
            partitions: The log's number of partitions.

        Returns:
            The records; None if one has an unusual form.
        """

    def grouped(self, batch: Sequence[DecidedRecords]) -> GroupedRecords | None:
        """The observations of a batch, by entity; None if the kernel panicked. The GIL is released during the call."""

    def RecordChecker(self, readers: Sequence[Reader], partitions: int) -> RecordChecker:  # noqa: N802
        """The checker of the records that these readers read, of a log with so many partitions."""

    def change_heads(self, changes: Sequence[bytes]) -> list[ChangeHead | None]:
        """The beginning of each framed change; None for one that only a new definition made, or of another form."""

    def SpanObserver(  # noqa: N802
        self, step: Reader, action: Reader, run: Reader, document: Reader
    ) -> SpanObserver:
        """The observer of spans, with the readers of the shipped types."""

    def placed(self, entities: Sequence[str]) -> list[bytes]:
        """The storage key of each entity's state: `placed` of streams/partitioner.py."""

    def spans_of(self, body: bytes) -> tuple[list[tuple[str, str, list[SpanText]]], int] | None:
        """The spans of a request of OTLP in protobuf. The GIL is released while it decodes.

        Returns:
            For each scope the canonical JSON of its resource and of itself, and its spans: trace id and span id in hex,
            and canonical JSON. Then the number of spans without valid ids. None if Python has to decode the request.
        """

    def BaseWriter(self, limit: int) -> BaseWriter:  # noqa: N802
        """The writer of a table.

        Args:
            limit: A chunk with so many bytes of entities is full.
        """

    def DeltaWriter(self, limit: int, start: int, is_whole: bool) -> DeltaWriter:  # noqa: N802
        """The writer of the entities with an observation at or after an offset.

        Args:
            limit: As for `BaseWriter`.
            start: The offset.
            is_whole: Whether it is given all entities of each place, and returns what covers all of them.
        """

    def merged(self, before: Sequence[bytes], own: Sequence[bytes]) -> tuple[list[bytes], list[bytes]] | None:
        """What the digests of some buckets cover, with some of their entities changed, and the digests:
        `merged_preimages` of streams/snapshots/chunk.py. None if Python has to do it, because one is damaged.
        """

    def SpanMerger(self, chunk_bytes: int, spans: int) -> SpanMerger:  # noqa: N802
        """An object that merges so many spans to chunks, each full at this size in bytes."""

    def LayerMerger(self) -> LayerMerger:  # noqa: N802
        """An object that merges layers; it has none yet."""

    def span_digests(self, spans: Sequence[Sequence[bytes]]) -> list[bytes]:
        """The SHA-256 of each span, given by its records. The GIL is released during the call."""

    def found_in(self, chunk: bytes, groups: Sequence[int], keys: Sequence[bytes]) -> list[bytes | None] | None:
        """The stored form of each entity that a chunk holds, None for the others.

        Args:
            chunk: The chunk, without further checks.
            groups: The number of each entity's group.
            keys: Their storage keys.

        Returns:
            None if Python has to look for them, because the chunk is damaged.
        """

    def TypeFolder(  # noqa: N802
        self, type_name: str, frame: bytes, fields: Sequence[FieldLayout], fingerprint: bytes, change_frame: bytes,
        offset: int,
    ) -> TypeFolder:  # fmt: skip
        """The object that folds a type version, whose definition is at this offset of `.schemas`."""


class KernelStatus(NamedTuple):
    """The kernel to use, if any.

    Attributes:
        text: The version of the kernel, or why no kernel is used.
        is_unusable: Whether a kernel is installed that cannot be used.
    """

    kernel: Kernel | None
    text: str
    is_unusable: bool = False


def find_kernel() -> KernelStatus:
    """Return the kernel to use in the present environment."""
    if os.environ.get(SWITCH, "") == "0":
        return KernelStatus(None, f"plain Python, for {SWITCH} is 0")
    return _installed()


@cache
def _installed() -> KernelStatus:
    try:
        found: Any = importlib.import_module(MODULE)
        version, format_number = str(found.__version__), found.FORMAT
    except ModuleNotFoundError as error:
        if error.name == MODULE:
            return KernelStatus(None, "plain Python, for refold-kernel is not installed")
        return _unusable(f"cannot be loaded: {error}")
    except (ImportError, AttributeError) as error:
        return _unusable(f"cannot be loaded: {error}")
    if format_number != FORMAT:
        return _unusable(f"{version} has format {format_number}, not {FORMAT}")
    return KernelStatus(found, f"kernel {version}")


def _unusable(problem: str) -> KernelStatus:
    return KernelStatus(None, f"plain Python, for refold-kernel {problem}", is_unusable=True)
