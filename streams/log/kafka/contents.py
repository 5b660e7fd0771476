"""Contents in a topic of the log: `PREFIX.contents`, compacted, in chunks (content_index.py has the records).

Kafka finds records by offset only. So each content has a small record with the offsets of its chunks, in partitions
that hold nothing else (content_index.py). To find a content a reader reads these records, not the chunks.

To put a content, by any number of processes at once:
1. Refresh the index of its partition. If a put counts, is not being removed, and has the right bytes (checked once in
   each process), write "again/", and refresh past it. If the put still counts and is not being removed, the put is
   done.
2. Otherwise write the chunks under a token of this put, and wait until they are durable.
3. Write "put/" with their offsets, and wait until it is durable. From here on the content exists. Killed before 3, a
process leaves chunks that nothing names (`sweep` finds them). Two processes that put one content at once store it
twice, and it is removed twice.

To remove some that were not put since a time:
1. Refresh the index. Keep those put since.
2. Write "removing/" for each put, under a token of this removal, and refresh past them. A process that writes "again/"
   after these sees them, and puts the content again. An "again/" before them is seen here: keep that content, and take
   "removing/" back. Do the same for a content that was put again meanwhile.
3. For an expiry, write "expired/", and wait until that is durable.
4. Remove each "put/", and wait until that is durable; then remove "again/" and the chunks, by records without a value.
5. "removing/" stays until the chunks are erased. If a process is killed in step 4, the next `settle` removes the chunks
   again. If it is killed earlier, the contents still exist, and a later put stores them again.

When the bytes of a removed chunk are gone from the brokers' disks:
1. Its segment, and the one with the record that removed it, are closed. A broker closes a segment that is `segment.ms`
   (an hour) old only when the next record is written: `settle` writes that record.
2. The brokers compact the closed segments (`max.compaction.lag.ms`, a day at most, unless set otherwise).
3. They delete the files of the old segments, `file.delete.delay.ms` (a minute) later. `remaining` counts the chunks
that are not compacted yet, by reading their offsets.

A removed content may be read for SEEN_S by a process that has just read it.

A log on Kafka has its contents in the store that its URL names, or else in its own topic, if that exists.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import RLock

from refold.avro.blob import is_expired
from refold.avro.errors import CorruptionError, InputError, StorageError
from refold.avro.observation import ID_BYTES
from refold.streams.blobs.store import ContentStore, RemovalResult, StoredContent, in_batches, whole
from refold.streams.blobs.url import NO_STORE, open_store
from refold.streams.checksum import sealed, unsealed
from refold.streams.deadline import Deadline
from refold.streams.log.kafka.clients import Clients
from refold.streams.log.kafka.content_index import (
    AGAIN,
    EXPIRED,
    PUT,
    REMOVING,
    SAID,
    TOKEN_BYTES,
    VERSION_BYTES,
    Chunks,
    ContentIndex,
    ContentPut,
    chunk_key,
    chunks_value,
    is_chunk_key,
    partition_of_content,
    split_key,
)
from refold.streams.log.kafka.damaged import UnreadableBatches
from refold.streams.log.kafka.foreign_records import ForeignRecords
from refold.streams.log.kafka.offsets import SHOWS_POLL_S, KafkaPartition, Offsets
from refold.streams.log.kafka.producer import LogProducer, OutgoingRecord
from refold.streams.log.kafka.range_reader import LogReaders, RawRecord
from refold.streams.log.kafka.topics import LogTopics, TopicAdmin
from refold.streams.log.kafka.url import Address

# Below the brokers' default limit (message.max.bytes, 1 MiB); two chunks fit into a batch.
CHUNK_BYTES = 480 << 10
SEEN_S = 1.0
_REMOVED_AT_ONCE = 256
_CHECKED_MAX = 100_000
# Chunks with at most so many offsets between them are read in one range.
_GAP_MAX = 8
_EVER_MS = 1 << 49


class TopicContents(ContentStore):
    """Contents by SHA-256. Thread-safe.

    Args:
        clock_s: A monotonic clock, in seconds.
    """

    erases_later = True

    def __init__(
        self, topic: str, partitions: int, clients: Clients, offsets: Offsets, timeout_s: float,
        foreign: ForeignRecords, unreadable: UnreadableBatches | None = None, *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """Create the store.

        Args:
            topic: The topic of contents, which has twice as many partitions as the log.
            partitions: The number of the log's partitions.
            clients: The factory of Kafka clients.
            offsets: Reads the ends of partitions.
            timeout_s: The timeout of requests, in seconds.
            foreign: Counts records that refold did not write.
            unreadable: Counts unreadable batches; None if they are an error.
            clock_s: A monotonic clock, in seconds.
        """
        self.url = f"kafka://{clients.servers}/{topic}"
        self._partitions = partitions
        self._timeout_s = timeout_s
        self._clock_s = clock_s
        self._unreadable = unreadable
        self._reading = LogReaders(clients, timeout_s, committed=False, unreadable=unreadable)
        # Each record is waited for, so batching would only add delay.
        self._outgoing = LogProducer(clients, **{"linger.ms": 0})
        self._lock = RLock()
        self._checked: set[bytes] = set()
        self._indexes = [
            ContentIndex(KafkaPartition(topic, each), partitions, offsets, self._reading, foreign, clock_s)
            for each in range(partitions)
        ]

    def __repr__(self) -> str:
        return f"<contents {self.url}>"

    def put(self, digest: bytes, content: bytes) -> None:
        with self._lock:
            index = self._index(digest)
            index.read_new()
            if is_expired(digest, content):
                if not index.puts(digest) and not index.has_expired(digest):
                    self._write(index.place, EXPIRED + digest, SAID, digest)
                return
            if not self._put_again(index, digest):
                self._put_anew(index, digest, content)

    def get(self, digest: bytes) -> bytes | None:
        index = self._looked_up(digest)
        while puts := index.puts(digest):
            failed = CorruptionError(digest.hex())
            for each in reversed(puts):
                try:
                    return self._content(index, digest, each)
                except CorruptionError as error:
                    failed = error
            with self._lock:
                index.read_new()
            if index.puts(digest) == puts:
                raise failed
        return None

    def size(self, digest: bytes) -> int | None:
        puts = self._looked_up(digest).puts(digest)
        return puts[-1].chunks.size if puts else None

    def has_expired(self, digest: bytes) -> bool:
        return self._looked_up(digest).has_expired(digest)

    def stored(self) -> Iterator[StoredContent]:
        for index in self._indexes:
            with self._lock:
                index.read_new()
                digests = index.digests()
            for digest in digests:
                if puts := index.puts(digest):
                    yield StoredContent(digest, puts[-1].chunks.size, max(each.put_ms for each in puts))

    def expired(self) -> Iterator[bytes]:
        self.read_new()
        for index in self._indexes:
            yield from index.expired()

    def remove(self, digests: Iterable[bytes], before_ms: int, *, is_expiry: bool = True) -> RemovalResult:
        contents = size = left = 0
        with self._lock:
            for lot in in_batches(digests, _REMOVED_AT_ONCE):
                by_index: dict[int, list[bytes]] = {}
                for digest in lot:
                    by_index.setdefault(partition_of_content(digest, self._partitions), []).append(digest)
                for number, some in by_index.items():
                    removed = self._remove(self._indexes[number], some, before_ms, is_expiry=is_expiry)
                    contents, size, left = contents + removed.contents, size + removed.bytes, left + removed.left
        return RemovalResult(contents, size, left)

    def remaining(self) -> int:
        with self._lock:
            return sum(len(self._removed(index)[0]) for index in self._indexes)

    def erase_removed(self) -> None:
        """Remove the chunks of removed contents again, which closes segments; forget erased ones."""
        with self._lock:
            for index in self._indexes:
                stored, erased = self._removed(index)
                self._remove_chunks(index, stored.items())
                self._write_all(index.place, dict.fromkeys(erased))

    def sweep(self, before_ms: int, *, dry_run: bool) -> int:
        """Reads every chunk. Raises CorruptionError if a batch cannot be read, because it may refer to chunks that are
        needed.
        """
        found = 0
        self.read_new()
        damaged = () if self._unreadable is None else self._unreadable.passed_over()
        for each in damaged:
            if each.topic == self._indexes[0].place.topic:
                raise CorruptionError(
                    f"{each.topic} {each.first}: {each.records} records cannot be read, so it is unknown which chunks "
                    "are named; restore the brokers' data, then repeat"
                )
        with self._lock:
            for index in self._indexes:
                unnamed = [*self._unnamed(index, before_ms)]
                found += len({key[:VERSION_BYTES] for key in unnamed})
                if not dry_run:
                    self._write_all(index.chunks, dict.fromkeys(unnamed))
        return found

    def read_new(self) -> None:
        """Read everything that was written by now, and count foreign records."""
        with self._lock:
            for index in self._indexes:
                index.read_new()

    def close(self) -> None:
        """Close the connections."""
        self._outgoing.close()
        self._reading.close()

    def _index(self, digest: bytes) -> ContentIndex:
        return self._indexes[partition_of_content(digest, self._partitions)]

    def _looked_up(self, digest: bytes) -> ContentIndex:
        """The index of a content. It is refreshed if the content is missing, or if it is older than SEEN_S."""
        index = self._index(digest)
        with self._lock:
            if self._clock_s() - index.read_at > SEEN_S or not index.puts(digest):
                index.read_new()
        return index

    def _read_past(self, index: ContentIndex, offset: int) -> None:
        deadline = Deadline(self._timeout_s)
        index.read_new()
        while index.next <= offset:
            if deadline.is_past:
                raise StorageError(f"{index.place.topic}: offset {offset} was written and is not visible; repeat")
            time.sleep(SHOWS_POLL_S)
            index.read_new()

    # Putting

    def _put_again(self, index: ContentIndex, digest: bytes) -> bool:
        """Step 1; returns whether the put is done."""
        for each in reversed(index.puts(digest)):
            version = digest + each.token
            if index.is_being_removed(version) or not self._is_sound(index, digest, each):
                continue
            seen_to, offset = index.next, self._write(index.place, AGAIN + version, SAID, digest)
            if seen_to == offset:  # no record in between
                return True
            self._read_past(index, offset)
            return not index.is_being_removed(version) and any(
                other.token == each.token for other in index.puts(digest)
            )
        return False

    def _is_sound(self, index: ContentIndex, digest: bytes, put: ContentPut) -> bool:
        """Whether a put has the right bytes."""
        if digest + put.token not in self._checked:
            try:
                self._content(index, digest, put)
            except CorruptionError:
                return False
            self._note_checked(digest + put.token)
        return True

    def _put_anew(self, index: ContentIndex, digest: bytes, content: bytes) -> None:
        """Steps 2 and 3."""
        version = digest + secrets.token_bytes(TOKEN_BYTES)
        pieces = [content[start : start + CHUNK_BYTES] for start in range(0, len(content), CHUNK_BYTES)] or [b""]
        offsets = [
            self._write(index.chunks, chunk_key(version, number), sealed(piece), digest)
            for number, piece in enumerate(pieces)
        ]
        self._write(index.place, PUT + version, chunks_value(Chunks(len(content), offsets)), digest)
        self._note_checked(version)

    def _note_checked(self, version: bytes) -> None:
        if len(self._checked) >= _CHECKED_MAX:
            self._checked.clear()
        self._checked.add(version)

    def _write(self, place: KafkaPartition, key: bytes, value: bytes | None, digest: bytes) -> int:
        return self._outgoing.write(_content_record(place, key, value, digest))

    # Removing

    def _remove(
        self, index: ContentIndex, digests: Sequence[bytes], before_ms: int, *, is_expiry: bool
    ) -> RemovalResult:
        index.read_new()  # step 1
        looked_to = index.next
        there = {digest: puts for digest in digests if (puts := index.puts(digest))}
        going = {digest: puts for digest, puts in there.items() if all(each.put_ms < before_ms for each in puts)}
        if not going:
            return RemovalResult(0, 0, len(there))
        token, here_ms = secrets.token_bytes(TOKEN_BYTES), time.time_ns() // 1_000_000
        marks_of = {digest: {REMOVING + digest + each.token + token: each.value for each in puts}
                for digest, puts in going.items()}  # fmt: skip
        marks = {key: value for each in marks_of.values() for key, value in each.items()}
        self._read_past(index, self._write_all(index.place, marks))  # step 2
        if before_ms < _EVER_MS:  # a time of this machine's clock, as one of the brokers'
            before_ms += min(0, index.time_ms - here_ms)
        since = [digest for digest in going if any(
            each.offset >= looked_to or each.put_ms >= before_ms for each in index.puts(digest)
        )]  # fmt: skip
        self._write_all(index.place, {key: None for digest in since for key in marks_of[digest]})
        done = {digest: puts for digest, puts in going.items() if digest not in since}
        if is_expiry:
            self._write_all(index.place, {EXPIRED + digest: SAID for digest in done})  # step 3
        versions = [(digest + each.token, each.chunks) for digest, puts in done.items() for each in puts]
        self._write_all(index.place, {PUT + version: None for version, _ in versions})  # step 4
        self._write_all(index.place, {AGAIN + version: None for version, _ in versions})
        self._remove_chunks(index, versions)
        index.read_new()
        size = sum(puts[-1].chunks.size for puts in done.values())
        return RemovalResult(len(done), size, len(there) - len(done))

    def _remove_chunks(self, index: ContentIndex, versions: Iterable[tuple[bytes, Chunks]]) -> None:
        self._write_all(index.chunks, {
            chunk_key(version, number): None for version, chunks in versions for number in range(len(chunks.offsets))
        })  # fmt: skip

    def _removed(self, index: ContentIndex) -> tuple[dict[bytes, Chunks], list[bytes]]:
        """Removed puts whose chunks the brokers still return, and the keys of the removal records of all others."""
        index.read_new()
        removed = [*index.removed()]
        found = self._chunks(index, sorted(at for _, _, chunks in removed for at in chunks.offsets))
        stored = {raw.key[:VERSION_BYTES] for raw in found if raw.key and raw.value is not None}
        return (
            {version: chunks for version, _, chunks in removed if version in stored},
            [key for version, keys, _ in removed if version not in stored for key in keys],
        )

    def _unnamed(self, index: ContentIndex, before_ms: int) -> Iterator[bytes]:
        """The keys of chunks that were written before a time and that no put refers to."""
        end = index.chunks_end(None)
        index.read_new()
        seen: dict[bytes, None] = {}
        for raw in self._reading.records(index.chunks, 0, end):
            key = raw.key or b""
            if raw.value is None:
                seen.pop(key, None)
            elif raw.timestamp < before_ms and is_chunk_key(key) and not index.knows(key[:VERSION_BYTES]):
                seen[key] = None
        yield from seen

    def _write_all(self, place: KafkaPartition, records: Mapping[bytes, bytes | None]) -> int:
        """Write records, durable on return. Returns the offset of the last one, -1 without records."""
        sent = [_content_record(place, key, value, _digest_in(key)) for key, value in records.items()]
        for each in sent[:-1]:
            self._outgoing.send(each)
        return self._outgoing.write(sent[-1]) if sent else -1

    # Reading

    def _content(self, index: ContentIndex, digest: bytes, put: ContentPut) -> bytes:
        place, chunks, pieces = index.chunks, put.chunks, list[bytes]()
        found = {raw.offset: raw for raw in self._chunks(index, chunks.offsets)}
        for number, offset in enumerate(chunks.offsets):
            where = f"{place.topic}/{place.partition}, offset {offset}: chunk {number} of the content {digest.hex()}"
            raw = found.get(offset)
            if raw is None or raw.value is None or raw.key != chunk_key(digest + put.token, number):
                raise CorruptionError(f"{where} is not there; restore it from a copy")
            pieces.append(unsealed(raw.value, where))
        where = f"{place.topic}/{place.partition}, offset {chunks.offsets[0]}: {digest.hex()}"
        return whole(digest, b"".join(pieces), where)

    def _chunks(self, index: ContentIndex, offsets: Sequence[int]) -> Iterator[RawRecord]:
        """The records at some ascending offsets that the brokers still return."""
        end = index.chunks_end(offsets[-1]) if offsets else 0
        for run in _runs([each for each in offsets if each < end]):
            wanted = frozenset(run)
            for raw in self._reading.records(index.chunks, run[0], run[-1] + 1, few=len(run) == 1):
                if raw.offset in wanted:
                    yield raw


def _runs(offsets: Sequence[int]) -> Iterator[list[int]]:
    """Groups of offsets that are read in one range."""
    run: list[int] = []
    for each in offsets:
        if run and each - run[-1] > _GAP_MAX:
            yield run
            run = []
        run.append(each)
    if run:
        yield run


def _digest_in(key: bytes) -> bytes:
    """The SHA-256 in a record's key."""
    return (split_key(key)[1] or key)[:ID_BYTES]


def _content_record(place: KafkaPartition, key: bytes, value: bytes | None, digest: bytes) -> OutgoingRecord:
    return OutgoingRecord(place, key, value, [], f"the content {digest.hex()}")


class LogStores:
    """Opens the stores of one log.

    Args:
        found: Its topics.
    """

    def __init__(
        self, address: Address, found: LogTopics, clients: Clients, offsets: Offsets, timeout_s: float,
        foreign: ForeignRecords, unreadable: UnreadableBatches,
    ) -> None:  # fmt: skip
        self._address = address
        self._found = found
        self._clients = clients
        self._offsets = offsets
        self._timeout_s = timeout_s
        self._foreign = foreign
        self._unreadable = unreadable

    def open(self) -> ContentStore | None:
        """Open the log's store; None if no URL names one and there is no topic."""
        if self._address.blobs is not None:
            return open_store(self._address.blobs)
        return self._topic() if self._found.has_contents else None

    def make(self) -> TopicContents:
        """Create the log's own topic. Raises StorageError."""
        self._admin().make_contents(self._address)
        return self._topic()

    @contextlib.contextmanager
    def other(self, url: str | None) -> Iterator[ContentStore]:
        """The store at a URL, or without one the log's own topic, which is created if necessary."""
        if url is not None:
            yield open_store(url)
            return
        with contextlib.closing(self._topic() if self._has_topic() else self.make()) as store:
            yield store

    def is_divided(self) -> bool:
        """Whether the URL names a store although the log's topic has or had contents."""
        if self._address.blobs is None or not self._has_topic():
            return False
        places = [KafkaPartition(self._found.topics.contents, each) for each in range(self._found.partitions)]
        return any(self._offsets.ends(places, committed=False).values())

    def missing(self) -> InputError:
        """The error for a log without a store."""
        return InputError(
            f"{self._address.url}: this log has no store of contents: it was made without the topic "
            f"{self._found.topics.contents}, or this user may not see it (refold acl). refold init makes it; else "
            f"{NO_STORE}"
        )

    def _has_topic(self) -> bool:
        return self._admin().open(self._address._replace(blobs=None), make=False).has_contents

    def _admin(self) -> TopicAdmin:
        return TopicAdmin(self._clients.admin(), self._timeout_s, self._clients)

    def _topic(self) -> TopicContents:
        return TopicContents(
            self._found.topics.contents, self._found.partitions, self._clients, self._offsets, self._timeout_s,
            self._foreign, self._unreadable,
        )  # fmt: skip
