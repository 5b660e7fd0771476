"""Finds contents that nothing names: left by a process that was killed between put and append, or never used.

1. List the contents whose last put is older than the grace period: the candidates, up to a limit.
2. Then read the ends of all partitions. Observations that named a candidate at that time are below them; a later one
   puts the content first, which updates its time.
3. Read all observations below the ends, including dead letters and records without verdict, and strike out the
   candidates that they name, at any depth, because a content may name others. If bytes cannot be read as an
   observation, the candidates' names are searched in the bytes, because a retry may be able to read them later.
4. Remove the remaining candidates that were not put since step 1 (`ContentStore.remove`), and do not note them as
   expired: if one were needed after all, it must not look expired.
5. Repeat from step 1 with the next candidates, until all were checked.

A content that is missing or damaged and may name others stops the collection, because the contents that it names are
unknown. States, snapshots and changes hold values of observations, and golden traces and exports carry their contents,
so nothing else has to be checked. The grace period must be longer than the time from putting a content to appending its
name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from refold.avro.blob import CBOR, references
from refold.avro.errors import CorruptionError, UndecodableError
from refold.avro.observation import ID_BYTES
from refold.streams.log.port import LogReader, Record

GRACE_S = 24 * 3600
CANDIDATES_MAX = 1_000_000

Progress = Callable[[int, int], None]


@dataclass(slots=True)
class Garbage:
    """The result: the contents in the store and their bytes; those that nothing names; those removed, and those
    kept.
    """

    contents: int = 0
    bytes: int = 0
    unnamed: int = 0
    unnamed_bytes: int = 0
    young: int = 0
    removed: int = 0
    removed_bytes: int = 0
    left: int = 0


def collect(
    log: LogReader, now_ms: int, *, grace_s: float = GRACE_S, dry_run: bool = True, progress: Progress | None = None,
    candidates_max: int = CANDIDATES_MAX,
) -> Garbage:  # fmt: skip
    """Find the contents that nothing names, and remove them unless it is a dry run; durable on return.

    Args:
        progress: Called with the number of further records read, and the present estimate of the total.

    Raises:
        CorruptionError: A content that may name others is missing or damaged.
    """
    found = Garbage()
    before_ms = now_ms - round(grace_s * 1000)
    total = 0
    for candidates in _candidate_batches(log, before_ms, found, candidates_max):
        log.refresh()
        ends = log.ends()
        total += sum(ends.values())
        _exclude_referenced(log, ends, candidates, lambda more, total=total: progress and progress(more, total))  # type: ignore[misc]
        found.unnamed += len(candidates)
        found.unnamed_bytes += sum(candidates.values())
        if candidates and not dry_run:
            removed = log.blobs.remove(candidates, before_ms, is_expiry=False)
            found.removed += removed.contents
            found.removed_bytes += removed.bytes
            found.left += removed.left
    return found


def _candidate_batches(
    log: LogReader, before_ms: int, found: Garbage, candidates_max: int
) -> Iterator[dict[bytes, int]]:
    """Step 1: bytes by name."""
    lot: dict[bytes, int] = {}
    for each in log.blobs.stored():
        found.contents += 1
        found.bytes += each.size
        if each.put_ms < before_ms:
            lot[each.digest] = each.size
        else:
            found.young += 1
        if len(lot) >= candidates_max:
            yield lot
            lot = {}
    if lot:
        yield lot


def _exclude_referenced(
    log: LogReader, ends: dict[int, int], candidates: dict[bytes, int], looked_at: Callable[[int, int], None]
) -> None:
    """Step 3."""
    for letter in log.deadletters():
        for digest in _names_in(letter.data, candidates):
            del candidates[digest]
    for partition, end in ends.items():
        for record in log.read(partition, 0, end):
            _exclude_referenced_in(log, record, candidates)
            looked_at(1, 0)


def _exclude_referenced_in(log: LogReader, record: Record, candidates: dict[bytes, int]) -> None:
    try:
        observation = log.registry.decode(record.data)
    except UndecodableError:
        for digest in _names_in(record.data, candidates):
            del candidates[digest]
        return
    missing: list[bytes] = []

    def content_of(digest: bytes) -> bytes | None:
        content = log.blobs.get(digest)
        if content is None and not log.blobs.has_expired(digest):
            missing.append(digest)
        return content

    for blob in references(observation.patch.values(), content_of):
        candidates.pop(blob.hash, None)
    if missing:
        raise CorruptionError(
            f"{record.entity}: the content {missing[0].hex()} ({CBOR}) is missing, and what it would name is not "
            "known; nothing was removed. Put it back from a copy, or see refold verify"
        )


def _names_in(data: bytes, candidates: Collection[bytes]) -> list[bytes]:
    """The candidates whose 32 bytes occur anywhere in `data`."""
    windows = {data[start : start + ID_BYTES] for start in range(len(data) - ID_BYTES + 1)}
    return [digest for digest in windows if digest in candidates]
