"""Contents that nothing names: left by a process that was killed between putting and appending, or put and never used.

1. List the contents whose last put is older than the grace: candidates, as many as fit into a bound.
2. Only then take the ends of all partitions. Whatever named a candidate while it was listed stands below them; who
   names one from here on puts it first, which sets its time anew.
3. Pass over all observations below the ends, those of dead letters and of records without verdict too, and strike out
   what they name, at any depth: a content may name others. Where bytes cannot be read as an observation, the names of
   the candidates are looked for in the bytes themselves, for a retry may read them one day.
4. Remove what is left, but nothing that was put since step 1 (`ContentStore.remove`), and note nothing: were one of
   them missed after all, it is to be told from what expired.
5. The next candidates, from 1, until all were looked at.

A content that is missing or damaged and may name others stops it: nothing is known of what those would name. States,
snapshots and changes hold values of observations, and golden traces and exports carry their contents, so there is
nothing else to ask. The grace has to be longer than anybody takes from putting a content to appending its name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from refold.avro.blob import CBOR, references
from refold.avro.errors import CorruptionError, UndecodableError
from refold.avro.observation import ID_BYTES
from refold.streams.log.port import LogPort, Record

GRACE_S = 24 * 3600
CANDIDATES_MAX = 1_000_000

Progress = Callable[[int, int], None]


@dataclass(slots=True)
class Garbage:
    """What was found: contents in the store, their bytes; what nothing names of it; what was removed, what left."""

    contents: int = 0
    bytes: int = 0
    unnamed: int = 0
    unnamed_bytes: int = 0
    young: int = 0
    removed: int = 0
    removed_bytes: int = 0
    left: int = 0


def collect(
    log: LogPort, now_ms: int, *, grace_s: float = GRACE_S, dry_run: bool = True, progress: Progress | None = None,
    candidates_max: int = CANDIDATES_MAX,
) -> Garbage:  # fmt: skip
    """Find the contents that nothing names, and remove them unless it is a dry run; durable on return.

    progress: told how many more records were read, and how many there are to read as far as is known.
    CorruptionError where a content that may name others is missing or damaged.
    """
    found = Garbage()
    before_ms = now_ms - round(grace_s * 1000)
    total = 0
    for candidates in _lots(log, before_ms, found, candidates_max):
        log.refresh()
        ends = log.ends()
        total += sum(ends.values())
        _strike_out(log, ends, candidates, lambda more, total=total: progress and progress(more, total))  # type: ignore[misc]
        found.unnamed += len(candidates)
        found.unnamed_bytes += sum(candidates.values())
        if candidates and not dry_run:
            removed = log.blobs.remove(candidates, before_ms, is_expiry=False)
            found.removed += removed.contents
            found.removed_bytes += removed.bytes
            found.left += removed.left
    return found


def _lots(log: LogPort, before_ms: int, found: Garbage, candidates_max: int) -> Iterator[dict[bytes, int]]:
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


def _strike_out(
    log: LogPort, ends: dict[int, int], candidates: dict[bytes, int], looked_at: Callable[[int, int], None]
) -> None:
    """Step 3."""
    for letter in log.deadletters():
        for digest in _names_in(letter.data, candidates):
            del candidates[digest]
    for partition, end in ends.items():
        for record in log.read(partition, 0, end):
            _strike_out_of(log, record, candidates)
            looked_at(1, 0)


def _strike_out_of(log: LogPort, record: Record, candidates: dict[bytes, int]) -> None:
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
    """The candidates whose 32 bytes stand anywhere in these."""
    windows = {data[start : start + ID_BYTES] for start in range(len(data) - ID_BYTES + 1)}
    return [digest for digest in windows if digest in candidates]
