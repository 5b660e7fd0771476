"""Contents in a topic of the log: `PREFIX.contents`, compacted, in chunks (content_index.py has the records).

Kafka finds records by offset only. So each content has a small record that says at which offsets its chunks are, in
partitions that hold nothing else (content_index.py), and a reader reads these, not the chunks, to find one.

To put a content, by any number of processes at once:
1. Read on in its partition. Where a put counts that nobody removes, and its bytes are the content's (looked at once a
   process), write "again/", and read on past it. If the put still counts and nobody removes it, that is all.
2. Else write the chunks under a token of this put, and wait until they are durable.
3. Write "put/" with their offsets, and wait until it is durable. The content is there from here on.
Killed before 3, a process leaves chunks that nothing names (`sweep` finds them). Two that put one content at once leave
it there twice, and it is removed twice.

To remove some that were not put since a time:
1. Read on. Leave those put since.
2. Write "removing/" of each put, under a token of this removal, and read on past them. Whoever writes "again/" after
   these sees them, and puts the content anew. Whoever wrote it before them is seen here: leave that content, and take
   "removing/" back. So is a content that was put anew meanwhile.
3. Where they have expired, write "expired/", and wait until that is durable.
4. Remove "put/" of each, and wait until that is durable; then "again/" and the chunks, by records without a value.
5. "removing/" stays until the chunks are erased. Killed in step 4, a process leaves the rest to the next `settle`,
   which removes the chunks once more; killed before, it leaves contents that are there, and are put anew if put again.

When the bytes of a removed chunk are gone from the brokers' disks:
1. Its segment, and the one with the record that removed it, are closed. A broker closes one that is `segment.ms` (an
   hour) old when the next record is written, and never by itself: `settle` writes that record.
2. The brokers compact the closed segments (`max.compaction.lag.ms`, a day at most, unless set otherwise).
3. They delete the files of the old segments, `file.delete.delay.ms` (a minute) later.
`remaining` counts what is before step 2, by asking for the very offsets.

A removed content may be read for SEEN_S by a process that has just read it.

Which store a log on Kafka has its contents in: the one its URL names, else its own topic, where there is that.
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
from refold.streams.blobs.store import ContentStore, Removed, StoredContent, in_lots, whole
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
from refold.streams.log.kafka.offsets import SHOWS_POLL_S, Offsets, TopicPlace
from refold.streams.log.kafka.producer import LogProducer, Sent
from refold.streams.log.kafka.range_reader import LogReaders, Raw
from refold.streams.log.kafka.topics import LogTopics, TopicAdmin
from refold.streams.log.kafka.url import Address

# Below what brokers take unless told otherwise (message.max.bytes, 1 MiB), and two are no more than a batch may be.
CHUNK_BYTES = 480 << 10
SEEN_S = 1.0
_REMOVED_AT_ONCE = 256
_CHECKED_MAX = 100_000
# Chunks so near to each other are read in one go, with what is between them.
_GAP_MAX = 8
_EVER_MS = 1 << 49


class TopicContents(ContentStore):
    """Contents by SHA-256, for several threads. clock_s: seconds that only grow."""

    erases_later = True

    def __init__(
        self, topic: str, partitions: int, clients: Clients, offsets: Offsets, timeout_s: float,
        foreign: ForeignRecords, unreadable: UnreadableBatches | None = None, *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """partitions: those of the log; the topic has twice as many. unreadable: counts what cannot be read."""
        self.url = f"kafka://{clients.servers}/{topic}"
        self._partitions = partitions
        self._timeout_s = timeout_s
        self._clock_s = clock_s
        self._unreadable = unreadable
        self._reading = LogReaders(clients, timeout_s, committed=False, unreadable=unreadable)
        # Each record is waited for, so nothing is gained by waiting for more to go with it.
        self._outgoing = LogProducer(clients, **{"linger.ms": 0})
        self._lock = RLock()
        self._checked: set[bytes] = set()
        self._indexes = [
            ContentIndex(TopicPlace(topic, each), partitions, offsets, self._reading, foreign, clock_s)
            for each in range(partitions)
        ]

    def __repr__(self) -> str:
        return f"<contents {self.url}>"

    def put(self, digest: bytes, content: bytes) -> None:
        with self._lock:
            index = self._index(digest)
            index.read_on()
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
                index.read_on()
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
                index.read_on()
                digests = index.digests()
            for digest in digests:
                if puts := index.puts(digest):
                    yield StoredContent(digest, puts[-1].chunks.size, max(each.put_ms for each in puts))

    def expired(self) -> Iterator[bytes]:
        self.read_on()
        for index in self._indexes:
            yield from index.expired()

    def remove(self, digests: Iterable[bytes], before_ms: int, *, is_expiry: bool = True) -> Removed:
        contents = size = left = 0
        with self._lock:
            for lot in in_lots(digests, _REMOVED_AT_ONCE):
                by_index: dict[int, list[bytes]] = {}
                for digest in lot:
                    by_index.setdefault(partition_of_content(digest, self._partitions), []).append(digest)
                for number, some in by_index.items():
                    removed = self._remove(self._indexes[number], some, before_ms, is_expiry=is_expiry)
                    contents, size, left = contents + removed.contents, size + removed.bytes, left + removed.left
        return Removed(contents, size, left)

    def remaining(self) -> int:
        with self._lock:
            return sum(len(self._removed(index)[0]) for index in self._indexes)

    def settle(self) -> None:
        """Remove the chunks of removed contents once more, which closes segments; forget those that are erased."""
        with self._lock:
            for index in self._indexes:
                stored, erased = self._removed(index)
                self._remove_chunks(index, stored.items())
                self._write_all(index.place, dict.fromkeys(erased))

    def sweep(self, before_ms: int, *, dry_run: bool) -> int:
        """Reads every chunk. CorruptionError where a batch cannot be read: it may name chunks that are needed."""
        found = 0
        self.read_on()
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

    def read_on(self) -> None:
        """See what everybody wrote by now; records of others are counted."""
        with self._lock:
            for index in self._indexes:
                index.read_on()

    def close(self) -> None:
        """Let go of the brokers."""
        self._outgoing.close()
        self._reading.close()

    def _index(self, digest: bytes) -> ContentIndex:
        return self._indexes[partition_of_content(digest, self._partitions)]

    def _looked_up(self, digest: bytes) -> ContentIndex:
        """The index of a content: what is not there is looked for once more, what is there is not older than SEEN_S."""
        index = self._index(digest)
        with self._lock:
            if self._clock_s() - index.read_at > SEEN_S or not index.puts(digest):
                index.read_on()
        return index

    def _read_past(self, index: ContentIndex, offset: int) -> None:
        deadline = Deadline(self._timeout_s)
        index.read_on()
        while index.next <= offset:
            if deadline.is_past:
                raise StorageError(f"{index.place.topic}: offset {offset} was written and is not visible; repeat")
            time.sleep(SHOWS_POLL_S)
            index.read_on()

    # Putting

    def _put_again(self, index: ContentIndex, digest: bytes) -> bool:
        """Step 1; whether it was enough."""
        for each in reversed(index.puts(digest)):
            version = digest + each.token
            if index.is_being_removed(version) or not self._is_sound(index, digest, each):
                continue
            seen_to, offset = index.next, self._write(index.place, AGAIN + version, SAID, digest)
            if seen_to == offset:  # nothing came between
                return True
            self._read_past(index, offset)
            return not index.is_being_removed(version) and any(
                other.token == each.token for other in index.puts(digest)
            )
        return False

    def _is_sound(self, index: ContentIndex, digest: bytes, put: ContentPut) -> bool:
        """Whether a put has the bytes that it should have."""
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

    def _write(self, place: TopicPlace, key: bytes, value: bytes | None, digest: bytes) -> int:
        return self._outgoing.write(_sent(place, key, value, digest))

    # Removing

    def _remove(self, index: ContentIndex, digests: Sequence[bytes], before_ms: int, *, is_expiry: bool) -> Removed:
        index.read_on()  # step 1
        looked_to = index.next
        there = {digest: puts for digest in digests if (puts := index.puts(digest))}
        going = {digest: puts for digest, puts in there.items() if all(each.put_ms < before_ms for each in puts)}
        if not going:
            return Removed(0, 0, len(there))
        token, here_ms = secrets.token_bytes(TOKEN_BYTES), time.time_ns() // 1_000_000
        said = {digest: {REMOVING + digest + each.token + token: each.value for each in puts}
                for digest, puts in going.items()}  # fmt: skip
        marks = {key: value for each in said.values() for key, value in each.items()}
        self._read_past(index, self._write_all(index.place, marks))  # step 2
        if before_ms < _EVER_MS:  # a time of this machine's clock, as one of the brokers'
            before_ms += min(0, index.time_ms - here_ms)
        since = [digest for digest in going if any(
            each.offset >= looked_to or each.put_ms >= before_ms for each in index.puts(digest)
        )]  # fmt: skip
        self._write_all(index.place, {key: None for digest in since for key in said[digest]})
        done = {digest: puts for digest, puts in going.items() if digest not in since}
        if is_expiry:
            self._write_all(index.place, {EXPIRED + digest: SAID for digest in done})  # step 3
        versions = [(digest + each.token, each.chunks) for digest, puts in done.items() for each in puts]
        self._write_all(index.place, {PUT + version: None for version, _ in versions})  # step 4
        self._write_all(index.place, {AGAIN + version: None for version, _ in versions})
        self._remove_chunks(index, versions)
        index.read_on()
        size = sum(puts[-1].chunks.size for puts in done.values())
        return Removed(len(done), size, len(there) - len(done))

    def _remove_chunks(self, index: ContentIndex, versions: Iterable[tuple[bytes, Chunks]]) -> None:
        self._write_all(index.chunks, {
            chunk_key(version, number): None for version, chunks in versions for number in range(len(chunks.offsets))
        })  # fmt: skip

    def _removed(self, index: ContentIndex) -> tuple[dict[bytes, Chunks], list[bytes]]:
        """Removed puts whose chunks the brokers still give out, and the keys of the records that say so of others."""
        index.read_on()
        removed = [*index.removed()]
        found = self._chunks(index, sorted(at for _, _, chunks in removed for at in chunks.offsets))
        stored = {raw.key[:VERSION_BYTES] for raw in found if raw.key and raw.value is not None}
        return (
            {version: chunks for version, _, chunks in removed if version in stored},
            [key for version, keys, _ in removed if version not in stored for key in keys],
        )

    def _unnamed(self, index: ContentIndex, before_ms: int) -> Iterator[bytes]:
        """The keys of chunks that were written before a time, and that no put names."""
        end = index.chunks_end(None)
        index.read_on()
        seen: dict[bytes, None] = {}
        for raw in self._reading.records(index.chunks, 0, end):
            key = raw.key or b""
            if raw.value is None:
                seen.pop(key, None)
            elif raw.timestamp < before_ms and is_chunk_key(key) and not index.knows(key[:VERSION_BYTES]):
                seen[key] = None
        yield from seen

    def _write_all(self, place: TopicPlace, records: Mapping[bytes, bytes | None]) -> int:
        """Write some, durable on return; the offset of the last, -1 where there are none."""
        sent = [_sent(place, key, value, _digest_in(key)) for key, value in records.items()]
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

    def _chunks(self, index: ContentIndex, offsets: Sequence[int]) -> Iterator[Raw]:
        """The records at some offsets, ascending, as far as the brokers give them out."""
        end = index.chunks_end(offsets[-1]) if offsets else 0
        for run in _runs([each for each in offsets if each < end]):
            wanted = frozenset(run)
            for raw in self._reading.records(index.chunks, run[0], run[-1] + 1, few=len(run) == 1):
                if raw.offset in wanted:
                    yield raw


def _runs(offsets: Sequence[int]) -> Iterator[list[int]]:
    """Offsets that are read in one go."""
    run: list[int] = []
    for each in offsets:
        if run and each - run[-1] > _GAP_MAX:
            yield run
            run = []
        run.append(each)
    if run:
        yield run


def _digest_in(key: bytes) -> bytes:
    """The SHA-256 that a record's key names."""
    return (split_key(key)[1] or key)[:ID_BYTES]


def _sent(place: TopicPlace, key: bytes, value: bytes | None, digest: bytes) -> Sent:
    return Sent(place, key, value, [], f"the content {digest.hex()}")


class LogStores:
    """Opens the stores of one log. found: its topics."""

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
        """The log's store; None where no URL names one and there is no topic."""
        if self._address.blobs is not None:
            return open_store(self._address.blobs)
        return self._topic() if self._found.has_contents else None

    def make(self) -> TopicContents:
        """The log's own topic, made now. StorageError."""
        self._admin().make_contents(self._address)
        return self._topic()

    @contextlib.contextmanager
    def other(self, url: str | None) -> Iterator[ContentStore]:
        """The store at a URL, or, without one, the log's own topic, made where there is none."""
        if url is not None:
            yield open_store(url)
            return
        with contextlib.closing(self._topic() if self._has_topic() else self.make()) as store:
            yield store

    def is_divided(self) -> bool:
        """Whether the URL names a store, and the log's topic has contents too, or had some."""
        if self._address.blobs is None or not self._has_topic():
            return False
        places = [TopicPlace(self._found.topics.contents, each) for each in range(self._found.partitions)]
        return any(self._offsets.ends(places, committed=False).values())

    def missing(self) -> InputError:
        """What is said where there is none."""
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
