"""Lookups in workers' tables, by a client of a Kafka log, which has no tables, and by another worker.

An answer is a shortcut: it gives the offset up to which it is complete. The log is read for the rest, and for
everything if no worker answers.

1. Find the worker: the members of the consumer group say which one owns a partition. Its client.id is
   `refold-worker URL`, so any client that may describe the group finds the pages of all workers.
2. Post the request to `/lookup/1` of its pages (worker_client.py; served by streams/worker/host/pages.py from
   streams/worker/own_tables.py). A loopback URL reaches a different worker on each machine, so each request names its
   log, and a worker of another log refuses it.

The request is CBOR of [name, arguments...], the answer is CBOR:

    arrivals    partition, entity, start, end       [through, [[offset, recorded_at, q, retracts]]]
    records     partition, entity, [q]              [through, [[partition, offset, recorded_at, entity, id, data]]]
    checkpoint  partition, entity, end, definition  its key and value as they are stored (streams/table/keys.py)
    places      id                                  [[[partition, offset]], {partition: through}]
    rows        partition, after                    [[key, value]] of the states after a key
    totals      partition                           [entities, observations]

A null answer: the item does not exist, or this worker does not fold the partition. `places` covers only the partitions
that this worker folds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeGuard

import cbor2
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription

from refold.avro.envelope import NAME_BYTES_MAX
from refold.avro.errors import InputError, StorageError
from refold.avro.observation import ID_BYTES
from refold.streams.log.kafka.committed import describe_group
from refold.streams.log.kafka.faults import error_of, storage_error
from refold.streams.log.port import Checkpoint, IndexedObservation, OtherTables, Record
from refold.streams.snapshots.garbage import Collected
from refold.streams.snapshots.manifest import Epoch
from refold.streams.web.client import PagesClient
from refold.streams.web.page import DEPTH_MAX, JSON, PageResponse, cbor_list


class IndexedHistory(NamedTuple):
    """The distinct observations of an entity in a table's indexes; complete below the offset `through`."""

    through: int
    arrivals: Sequence[IndexedObservation]


class IndexedRecords(NamedTuple):
    """Records in the order of the request, None for each that the indexes lack; `through` as in IndexedHistory."""

    through: int
    records: Sequence[Record | None]


class IdMatches(NamedTuple):
    """(partition, offset) of records whose ids have the same prefix as the requested id.

    Attributes:
        through: The offset below which `positions` is complete, for each partition that was searched.
    """

    positions: Sequence[tuple[int, int]]
    through: Mapping[int, int]


class TableClient(ABC):
    """Reads the tables of a log by entity and partition.

    A look-up returns None if no worker that folds the partition answers.
    """

    @abstractmethod
    def arrivals(self, partition: int, entity: str, start: int, end: int) -> IndexedHistory | None:
        """Return an entity's observations with start <= offset < end; None if no worker answers."""

    @abstractmethod
    def records_of(self, partition: int, entity: str, qs: Sequence[bytes]) -> IndexedRecords | None:
        """Return the first record of each of an entity's observations, by order key; None if no worker answers."""

    @abstractmethod
    def checkpoint(self, partition: int, entity: str, end: int, definition: int) -> Checkpoint | None:
        """See LogPort.checkpoint; also None if there is no checkpoint."""

    @abstractmethod
    def places_of(self, observation_id: bytes) -> IdMatches:
        """Return the positions at which an id may be stored."""

    @abstractmethod
    def entities(self, partition: int) -> Iterator[tuple[str, bytes]]:
        """Yield a partition's table as it is stored: (entity, packed state).

        Raises:
            StorageError: no worker answers.
        """

    @abstractmethod
    def totals(self, partition: int) -> tuple[int, int]:
        """Return how many entities, and how many distinct observations, a partition's table counts.

        Raises:
            StorageError: no worker answers.
        """


class WorkerCommands(ABC):
    """Commands to the workers. If no worker answers, the StorageError says what to do."""

    @abstractmethod
    def await_folded(self, offsets: Mapping[int, int], schemas: int) -> None:
        """Return when everything below the offsets is folded, and the definitions below `schemas` are registered."""

    @abstractmethod
    def snapshot(self, pinned_at: int | None) -> Sequence[Epoch]:
        """Seal an epoch of every partition that has records, at its fold's current position; see LogPort.snapshot."""

    @abstractmethod
    def pin(self, epochs: Iterable[Epoch], pinned_at: int | None) -> None:
        """See LogPort.pin; the epochs exist."""

    @abstractmethod
    def collect(self, *, dry_run: bool, damaged: bool) -> Sequence[Collected]:
        """See LogPort.collect."""

    @abstractmethod
    def recover(self, *, wait: bool) -> Mapping[str, object]:
        """See LogPort.recover."""

    @abstractmethod
    def verify(self) -> OtherTables:
        """Compare every table with a full replay; the worker that stores a table compares it."""


FORWARDED = "X-Refold-Forwarded"
LOG = "X-Refold-Log"
OTHER_LOG = 409
"""The status with which a worker refuses a request about another log."""
LOOKUP = "lookup/1"
"""The page of look-ups, with the version of its protocol: a worker with another version has no such page."""
CBOR = "application/cbor"


def ask(
    asker: PagesClient, url: str, content: bytes | None = None, *, log_id: bytes, timeout_s: float,
    media_type: str = JSON, is_forwarded: bool = False,
) -> PageResponse:  # fmt: skip
    """Request a page of a worker.

    Args:
        asker: the HTTP client.
        url: the page's URL.
        content: the body of a POST request; None sends a GET request.
        log_id: the id of the log; a worker of another log refuses the request.
        timeout_s: how long to wait for the answer, in seconds.
        media_type: the content type of `content`.
        is_forwarded: whether this worker forwards another client's request.

    Raises:
        OSError: nobody answers.
    """
    headers = {LOG: log_id.hex(), **({FORWARDED: "1"} if is_forwarded else {})}
    if content is not None:
        headers["Content-Type"] = media_type
    return asker.ask(url, content, headers, timeout_s)


CLIENT_ID = "refold-worker "
TIMEOUT_S = 10.0


def client_id(url: str) -> str:
    """Return a worker's client.id in its group."""
    return f"{CLIENT_ID}{url}"


def workers_of(admin: AdminClient, group: str, topic: str) -> dict[int, str]:
    """Return the URL of the owning worker's pages by partition.

    Partitions without an owner, or whose owner has no pages, are left out.

    Args:
        admin: A client of the cluster.
        group: The group of the log's workers.
        topic: Its topic of observations.

    Raises:
        StorageError: The group cannot be described.
    """
    try:
        found = describe_group(admin, group, TIMEOUT_S)
    except KafkaException as failed:
        raise storage_error(f"the group {group} does not say which worker owns which partition", failed) from failed
    return {
        partition: each.url for each in _members(found, topic) if each.url is not None for partition in each.partitions
    }


class Member(NamedTuple):
    """A member of the group, and the partitions assigned to it."""

    client_id: str
    partitions: tuple[int, ...]

    @property
    def url(self) -> str | None:
        """The URL of the worker's pages; None for a member without pages."""
        return self.client_id.removeprefix(CLIENT_ID) if self.client_id.startswith(CLIENT_ID) else None


def members_of(admin: AdminClient, group: str, topic: str, timeout_s: float, needs: str = "") -> list[Member]:
    """Return the group's current members, retrying until a coordinator answers; empty if there is no such group.

    Args:
        admin: the admin client.
        group: the group's id.
        topic: the topic whose assigned partitions are returned.
        timeout_s: how long to retry, in seconds.
        needs: the remedy to name in the error if an access list denies the request.

    Raises:
        StorageError: the members cannot be read.
    """
    try:
        return _members(describe_group(admin, group, timeout_s), topic)
    except KafkaException as failed:
        error = error_of(failed)
        if error is not None and error.code() == KafkaError.GROUP_ID_NOT_FOUND:
            return []
        raise storage_error(f"the members of the group {group} cannot be read", failed, needs=needs) from failed


def _members(found: ConsumerGroupDescription, topic: str) -> list[Member]:
    return sorted(
        Member(each.client_id, tuple(sorted(
            place.partition for place in each.assignment.topic_partitions if place.topic == topic
        )))
        for each in found.members
    )  # fmt: skip


Q_BYTES_MAX = 4 << 10


def _is_whole(given: object) -> TypeGuard[int]:
    return type(given) is int and 0 <= given < 2**63


def _is_partition(given: object) -> TypeGuard[int]:
    return type(given) is int and 0 <= given < 2**31


def _is_entity(given: object) -> bool:
    return isinstance(given, str) and len(given) <= NAME_BYTES_MAX


def _is_key(given: object) -> bool:
    return isinstance(given, bytes) and len(given) <= Q_BYTES_MAX


def _are_keys(given: object) -> bool:
    return isinstance(given, list) and all(map(_is_key, given))


def _is_id(given: object) -> bool:
    return isinstance(given, bytes) and len(given) == ID_BYTES


_ARGUMENTS: dict[str, tuple[Callable[[object], bool], ...]] = {
    "arrivals": (_is_partition, _is_entity, _is_whole, _is_whole),
    "records": (_is_partition, _is_entity, _are_keys),
    "checkpoint": (_is_partition, _is_entity, _is_whole, _is_whole),
    "places": (_is_id,),
    "rows": (_is_partition, _is_key),
    "totals": (_is_partition,),
}


def parse_lookup(content: bytes) -> tuple[str, list[Any]]:
    """Return the name and the arguments of a look-up request.

    Raises:
        InputError: the look-up is unknown, or an argument has another type or range.
    """
    name, *arguments = cbor_list(content) or [None]
    checks = _ARGUMENTS.get(name) if isinstance(name, str) else None
    if checks is None:
        raise InputError(f"the look-up {name!r:.40} is not known to this release")
    if len(arguments) != len(checks) or not all(check(each) for check, each in zip(checks, arguments, strict=True)):
        raise InputError(f"the look-up {name} was not sent in the form that this release knows")
    return str(name), arguments


# A worker's answer is trusted only after its form has been checked: any member of the workers' group may run any
# program that answers.


def parse_arrivals(tree: object) -> IndexedHistory | None:
    """Parse the answer to `arrivals`.

    Raises:
        StorageError: the answer has another form. The same holds for each of the functions below.
    """
    if tree is None:
        return None
    match tree:
        case [through, [*arrivals]] if _is_whole(through):
            return IndexedHistory(through, [_arrival(each) for each in arrivals])
    _refuse("arrivals")


def _arrival(tree: Any) -> IndexedObservation:
    match tree:
        case [offset, int(recorded_at), bytes(q), bool(retracts)] if _is_whole(offset):
            return IndexedObservation(offset, recorded_at, q, retracts)
    _refuse("arrivals")


def parse_records(tree: Any) -> IndexedRecords | None:
    """Parse the answer to `records`."""
    if tree is None:
        return None
    match tree:
        case [through, [*records]] if _is_whole(through):
            return IndexedRecords(through, [None if each is None else _record(each) for each in records])
    _refuse("records")


def _record(tree: Any) -> Record:
    match tree:
        case [partition, offset, int(recorded_at), str(entity), bytes(id_), bytes(data)]:
            if _is_partition(partition) and _is_whole(offset) and len(id_) == ID_BYTES:
                return Record(partition, offset, recorded_at, entity, id_, data)
    _refuse("records")


def parse_places(tree: Any) -> IdMatches:
    """Parse the answer to `places`."""
    match tree:
        case [[*places], dict(through)]:
            pairs = [*places, *(list(each) for each in through.items())]
            if all(isinstance(each, list) and len(each) == 2 and all(map(_is_whole, each)) for each in pairs):
                return IdMatches([(partition, offset) for partition, offset in places], dict(tree[1]))
    _refuse("places")


def parse_pairs(tree: Any) -> list[tuple[bytes, bytes]]:
    """Parse the answer to `rows`, or the answer to `checkpoint` wrapped in a list."""
    if isinstance(tree, list):
        found = [(each[0], each[1]) for each in tree if isinstance(each, list) and len(each) == 2]
        if len(found) == len(tree) and all(isinstance(part, bytes) for each in found for part in each):
            return found
    _refuse("rows")


def parse_totals(tree: Any) -> tuple[int, int]:
    """Parse the answer to `totals`."""
    match tree:
        case [entities, observations] if _is_whole(entities) and _is_whole(observations):
            return entities, observations
    _refuse("totals")


def _refuse(name: str) -> NoReturn:
    raise StorageError(
        f"a worker's answer to {name} is not in the form that this release knows; is the worker of another release?"
    )


def read_answer(content: bytes, url: str) -> object:
    """Decode an answer's CBOR.

    Raises:
        StorageError: the content is not CBOR.
    """
    try:
        return cbor2.loads(content, max_depth=DEPTH_MAX)
    except (cbor2.CBORDecodeError, ValueError, TypeError, LookupError) as error:
        raise StorageError(f"{url}: its worker's answer cannot be read: {error}") from error
