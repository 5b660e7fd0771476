"""The topics of a log: their names, their creation, and the check of the settings that refold's promises need.

Creating a log. Any number of processes may run these steps at once, and a killed process leaves the rest to the next:
0. If there is no `.observations`, but another topic has records, an earlier log lost its observations: refuse, because
   those records would count as the new log's.
1. Create `.changes` with the requested number of partitions; the first process decides the number.
2. Create the other topics, except `.observations`, with the same number, and `.contents` with twice as many. If each
   topic has three or more replicas, set `min.insync.replicas` to 2.
3. Create `.observations` last: from then on the log exists, and this topic's id is the log's id.

Opening a log compares every topic's settings with those it needs. A difference is an error that names the setting:
data that the broker may delete, or timestamps that producers may invent, would be lost for good.

`.contents` (contents.py) is created with a log whose URL names no other store of contents, and by `make_contents` for
a log that was created without it. A process whose URL names another store never asks for it.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
    TopicDescription,
)

from refold.avro.errors import Denied, InputError, StorageError
from refold.streams.deadline import Deadline
from refold.streams.log.kafka.access import (
    ALTER_CONFIGS,
    CREATE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    TOPIC,
    Grant,
    denial_message,
)
from refold.streams.log.kafka.clients import MESSAGE_BYTES_MAX, Clients
from refold.streams.log.kafka.faults import error_of, may_pass, storage_error
from refold.streams.log.kafka.offsets import KafkaPartition, Offsets
from refold.streams.log.kafka.topic_problems import (
    IN_SYNC_MIN,
    MAX_BYTES,
    TopicProblem,
    copies,
    missing_topics,
    wrong_settings,
)
from refold.streams.log.kafka.url import Address, merged
from refold.streams.partitioner import PARTITIONS_DEFAULT, SLOTS

POLL_S = 0.05
# A request waits for the controller that the client last knew, if necessary for its whole time-out, and does not look
# for a newer one. So each request gets a part of the time, and the client asks the brokers for metadata in between.
REQUEST_S = 3.0
# A client that was answered by a fenced broker may forget all brokers for good (confluentinc/librdkafka#5301, seen with
# 2.16). After these numbers of metadata requests without an answer, another client is created.
_ANOTHER_AFTER = frozenset({1, 3, 10, 30})
_BATCH_BYTES_MAX = MESSAGE_BYTES_MAX + (64 << 10)

_KEPT = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "unclean.leader.election.enable": "false",
    MAX_BYTES: str(_BATCH_BYTES_MAX),
}
_TIMED = {**_KEPT, "message.timestamp.type": "LogAppendTime"}
_COMPACTED = {
    "cleanup.policy": "compact",
    "unclean.leader.election.enable": "false",
    MAX_BYTES: str(_BATCH_BYTES_MAX),
}
# Its records are below the brokers' default size limit; the brokers set the time of a put.
_CONTENTS = {
    "cleanup.policy": "compact",
    "unclean.leader.election.enable": "false",
    "message.timestamp.type": "LogAppendTime",
    MAX_BYTES: str((1 << 20) + (64 << 10)),
}
_UNHEARD_OF = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART})
# These affect how data is stored, not what it means: an operator may choose other values.
_SMALL_SEGMENTS = {"segment.bytes": str(64 << 20), "segment.ms": str(3600 * 1000), "min.cleanable.dirty.ratio": "0.2"}
_ERASED_WITHIN_DAY = {**_SMALL_SEGMENTS, "max.compaction.lag.ms": str(24 * 3600 * 1000)}


class Topics:
    """The topics' names, and the name of the workers' consumer group."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.observations = f"{prefix}.observations"
        self.changes = f"{prefix}.changes"
        self.deadletters = f"{prefix}.deadletters"
        self.snapshots = f"{prefix}.snapshots"
        self.manifests = f"{prefix}.manifests"
        self.schemas = f"{prefix}.schemas"
        self.contents = f"{prefix}.contents"
        self.keys = f"{prefix}.keys"
        self.group = f"refold.{prefix}"

    @property
    def needed(self) -> dict[str, Mapping[str, str]]:
        """Each topic's settings, `.changes` first and `.observations` last."""
        return {
            self.changes: _KEPT,
            self.deadletters: _KEPT,
            self.snapshots: _COMPACTED,
            self.manifests: _COMPACTED,
            self.schemas: _TIMED,
            self.observations: _TIMED,
        }


class LogTopics(NamedTuple):
    """A log's topics on the broker.

    Attributes:
        log_id: The log's id, 16 bytes.
        partitions: The number of its partitions.
        has_contents: Whether the log has a topic of contents, and uses it.
    """

    topics: Topics
    log_id: bytes
    partitions: int
    has_contents: bool


def kafka_log_exists(address: Address, *, config: Mapping[str, str] | None = None, timeout_s: float) -> bool:
    """Return whether the log exists.

    Args:
        address: The brokers and the log's prefix.
        config: Settings of Kafka's clients, which override REFOLD_KAFKA_CONFIG.
        timeout_s: The timeout of requests, in seconds.

    Raises:
        StorageError: No broker answers.
    """
    clients = Clients(merged(address, config), address.prefix)
    return TopicAdmin(clients.admin(), timeout_s, clients).exists(address)


class TopicAdmin:
    """Creates, finds and checks the topics of logs."""

    def __init__(self, admin: AdminClient, timeout_s: float, clients: Clients | None = None) -> None:
        """Create it.

        Args:
            admin: A client of the cluster.
            timeout_s: The timeout of requests, in seconds.
            clients: The factory of the admin client. It knows the client's last messages and its principal, and creates
                a replacement for a client that finds no broker.
        """
        self._admin = admin
        self._timeout_s = timeout_s
        self._clients = clients
        self._unanswered = 0

    def exists(self, address: Address) -> bool:
        """Return whether the log exists.

        Raises:
            StorageError: the broker does not answer.
        """
        name = Topics(address.prefix).observations
        return name in self._describe([name], address)

    def has_extra_topic(self, name: str, needed: Mapping[str, str], extra: Mapping[str, str], address: Address,
                        *, make: bool) -> bool:  # fmt: skip
        """Return whether there is a one-partition topic next to the log's own; create it if `make` is set.

        Args:
            name: the topic's name.
            needed: the settings that it must have, which are checked.
            extra: further settings for a new topic.
            address: the log.
            make: whether to create the topic if it is missing.

        Raises:
            StorageError: the broker does not answer, or a setting differs.
        """
        found = self._describe([name], address)
        if name not in found:
            if not make:
                return False
            # Determined before the topic is created, so that the first recorder needs no right to alter settings.
            log = self._describe([Topics(address.prefix).observations], address)
            in_sync = {IN_SYNC_MIN: "2"} if log and min(map(copies, log.values())) >= 3 else {}
            self._create([_new(name, 1, {**needed, **extra, **in_sync})], address)
            found = self._await([name], address)
            is_low = not in_sync and copies(found[name]) >= 3
            self._raise_in_sync(found, {IN_SYNC_MIN: "2"} if is_low else {}, address)
        self._check_settings({name: needed}, found, address)
        return True

    def unfit(self, address: Address) -> list[TopicProblem]:
        """Return everything that is wrong with a log's topics.

        Raises:
            StorageError: the broker does not answer.
        """
        topics = Topics(address.prefix)
        found = self._describe(topics.needed, address)
        wanted = {name: needed for name, needed in topics.needed.items() if name in found}
        contents: list[TopicProblem] = []
        if address.blobs is None and topics.observations in found:
            partitions = len(found[topics.observations].partitions)
            with suppress(Denied):  # then treat the topic as missing
                there = self._describe([topics.contents], address)
                contents = [*self._unfit_contents(topics, partitions, there, address)]
        return [
            *missing_topics(topics.needed, topics.observations, topics.schemas, found),
            *self._wrong_settings(wanted, found, address),
            *contents,
        ]

    def open(self, address: Address, *, make: bool) -> LogTopics:
        """Return the log's topics; create them if there is no log and `make` is set.

        Raises:
            InputError: there is no log, records of an earlier log remain, or the number of partitions differs.
            StorageError: the broker does not answer, or a topic is not as it must be.
        """
        topics = Topics(address.prefix)
        found = self._describe(topics.needed, address)
        if topics.observations not in found:
            if not make:
                raise InputError(
                    f"{address.url}: there is no log here; record into it first, or give another with --log "
                    f"(there is no topic {topics.observations})"
                )
            contents = {} if address.blobs is not None else self._describe([topics.contents], address)
            self._require_clear(topics, {**found, **contents}, address)
            found = self._make(topics, address)
        partitions = len(found[topics.observations].partitions)
        if address.partitions not in {None, partitions}:
            raise InputError(
                f"{address.url}: this log has {partitions} partitions, fixed when it was created; "
                f"open it without ?partitions={address.partitions}"
            )
        self._check(topics, found, address)
        has_contents = address.blobs is None and self._has_contents(topics, partitions, address)
        return LogTopics(topics, _id_of(found[topics.observations], address), partitions, has_contents)

    def make_contents(self, address: Address) -> None:
        """Create a log's topic of contents, if it has none.

        Raises:
            StorageError: the topic could not be created.
        """
        topics = Topics(address.prefix)
        log = self._describe([topics.observations], address)
        self._create([_new_contents(topics, len(log[topics.observations].partitions))], address)
        found = self._await([topics.contents], address)
        self._raise_in_sync(found, {IN_SYNC_MIN: "2"} if min(map(copies, log.values())) >= 3 else {}, address)

    def _has_contents(self, topics: Topics, partitions: int, address: Address) -> bool:
        """Return whether the log has a topic of contents.

        Raises:
            StorageError: the topic is not as it must be.
        """
        try:
            found = self._describe([topics.contents], address)
        except Denied:  # this user's rights date from a release without the topic
            return False
        for unfit in self._unfit_contents(topics, partitions, found, address):
            raise unfit.error(address)
        return bool(found)

    def _unfit_contents(
        self, topics: Topics, partitions: int, found: Mapping[str, TopicDescription], address: Address
    ) -> Iterator[TopicProblem]:
        for name, topic in found.items():
            if len(topic.partitions) != 2 * partitions:
                yield TopicProblem(name, f"has {len(topic.partitions)} partitions, and this log needs {2 * partitions}",
                            "begin a log under another prefix, or name another store with REFOLD_BLOBS")  # fmt: skip
            else:
                yield from self._wrong_settings({topics.contents: _CONTENTS}, found, address)

    # Creating

    def _require_clear(self, topics: Topics, found: Mapping[str, TopicDescription], address: Address) -> None:
        places = [KafkaPartition(name, each.id) for name, topic in found.items() for each in topic.partitions]
        ends = Offsets(self._admin, self._timeout_s).ends(places, committed=False)
        remains = sorted({place.topic for place, end in ends.items() if end})
        if remains and not self.exists(address):  # else another process has just made it
            raise InputError(
                f"{address.url}: {', '.join(remains)}: records of an earlier log, whose {topics.observations} "
                "is gone. Restore the brokers' data; or create a log under another prefix, or under this one after all "
                f"topics {topics.prefix}.* are deleted"
            )

    def _make(self, topics: Topics, address: Address) -> dict[str, TopicDescription]:
        needed = topics.needed
        first, *middle, last = needed
        self._create([_new(first, address.partitions or PARTITIONS_DEFAULT, needed[first])], address)
        decided = self._await([first], address)[first]
        partitions = len(decided.partitions)
        counts = {name: 1 if name == topics.schemas else partitions for name in needed}
        extra = {name: _SMALL_SEGMENTS if needed[name] is _COMPACTED else {} for name in needed}
        contents = [] if address.blobs is not None else [_new_contents(topics, partitions)]
        new = [_new(name, counts[name], {**needed[name], **extra[name]}) for name in middle]
        self._create([*new, *contents], address)
        found = self._await([first, *middle, *(each.topic for each in contents)], address)
        in_sync = {IN_SYNC_MIN: "2"} if copies(decided) >= 3 else {}
        self._raise_in_sync(found, in_sync, address)
        self._create([_new(last, partitions, {**needed[last], **in_sync})], address)
        return self._await(needed, address)

    def _create(self, topics: list[NewTopic], address: Address) -> None:
        left, deadline = {each.topic: each for each in topics}, Deadline(self._timeout_s)
        while left:
            asked = self._admin.create_topics(list(left.values()), request_timeout=self._request_s(deadline))
            for name, done in asked.items():
                try:
                    done.result()
                except KafkaException as failed:
                    error = error_of(failed)
                    if error is None or error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                        if not may_pass(failed, frozenset()) or deadline.is_past:
                            doing = f"{address.url}: the topic {name} could not be made"
                            raise storage_error(doing, failed, needs=self._needs(name, CREATE, address)) from failed
                        continue
                del left[name]
            if left:
                self._ask_brokers(deadline)

    def _raise_in_sync(
        self, found: Mapping[str, TopicDescription], in_sync: Mapping[str, str], address: Address
    ) -> None:
        if not in_sync:
            return
        entries = [
            ConfigResource(
                ResourceType.TOPIC,
                name,
                incremental_configs=[
                    ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
                    for key, value in in_sync.items()
                ],
            )
            for name in found
        ]
        for resource, done in self._admin.incremental_alter_configs(entries).items():
            try:
                done.result()
            except KafkaException as failed:
                doing = f"{address.url}: {IN_SYNC_MIN} of the topic {resource.name} could not be set"
                needs = self._needs(resource.name, ALTER_CONFIGS, address)
                raise storage_error(doing, failed, needs=needs) from failed

    # Finding

    def _await(self, names: Iterable[str], address: Address) -> dict[str, TopicDescription]:
        """Wait until the brokers know all of the topics, and return them. A broker may learn of a new topic late."""
        wanted, deadline = set(names), Deadline(self._timeout_s)
        while True:
            found = self._describe(wanted, address)
            missing = wanted - found.keys()
            if not missing:
                return found
            if deadline.is_past:
                raise StorageError(f"{address.url}: the topic {min(missing)} was created, and is missing; check the "
                                   "broker's log, then repeat")  # fmt: skip
            time.sleep(POLL_S)

    def _describe(self, names: Iterable[str], address: Address) -> dict[str, TopicDescription]:
        """Return the topics that exist, with all their partitions, each with its leader."""
        deadline = Deadline(self._timeout_s)
        while True:
            try:
                return self._describe_once(names, self._request_s(deadline), address)
            except KafkaException as failed:
                doing = f"{address.url}: no answer from {address.servers}"
                last_error = self._last_error()
                if self._clients is not None and self._clients.refused is not None:
                    raise storage_error(doing, self._clients.refused) from failed
                if not may_pass(failed, frozenset()) or deadline.is_past:
                    raise storage_error(doing, failed, last_error) from failed
                self._ask_brokers(deadline)

    def _describe_once(self, names: Iterable[str], timeout_s: float, address: Address) -> dict[str, TopicDescription]:
        found: dict[str, TopicDescription] = {}
        asked = self._admin.describe_topics(TopicCollection(sorted(names)), request_timeout=timeout_s)
        for name, done in asked.items():
            try:
                found[name] = done.result()
            except KafkaException as failed:
                error = error_of(failed)
                if error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    doing = f"{address.url}: the topic {name} cannot be looked at"
                    raise storage_error(doing, failed, needs=self._needs(name, DESCRIBE, address)) from failed
                if error is None or error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
        return found

    def _needs(self, name: str, operation: str, address: Address) -> str:
        principal = "User:NAME" if self._clients is None else self._clients.principal
        return denial_message(Grant(TOPIC, name, operation), principal, address.servers)

    def _last_error(self) -> str:
        self._admin.poll(0)  # delivers the client's messages about brokers
        return "" if self._clients is None else self._clients.last_error

    # Checking

    def _check(self, topics: Topics, found: Mapping[str, TopicDescription], address: Address) -> None:
        partitions = len(found[topics.observations].partitions)
        if partitions > SLOTS or partitions & (partitions - 1):
            raise StorageError(
                f"{address.url}: the topic {topics.observations} has {partitions} partitions, and a log has a power of "
                f"two up to {SLOTS}; partitions cannot be added to a log"
            )
        for unfit in chain(
            missing_topics(topics.needed, topics.observations, topics.schemas, found),
            self._wrong_settings(topics.needed, found, address),
        ):
            raise unfit.error(address)  # the settings are requested only if no topic is missing

    def _check_settings(
        self, wanted: Mapping[str, Mapping[str, str]], found: Mapping[str, TopicDescription], address: Address
    ) -> None:
        for unfit in self._wrong_settings(wanted, found, address):
            raise unfit.error(address)

    def _wrong_settings(
        self, wanted: Mapping[str, Mapping[str, str]], found: Mapping[str, TopicDescription], address: Address
    ) -> Iterator[TopicProblem]:
        yield from wrong_settings(wanted, found, self._settings(wanted, address), address)

    def _settings(self, names: Iterable[str], address: Address) -> dict[str, dict[str, str | None]]:
        found: dict[str, dict[str, str | None]] = {}
        wanted, deadline = set(names), Deadline(self._timeout_s)
        while missing := sorted(wanted - found.keys()):
            asked = [ConfigResource(ResourceType.TOPIC, name) for name in missing]
            answers = self._admin.describe_configs(asked, request_timeout=self._request_s(deadline))
            for resource, done in answers.items():
                try:
                    found[resource.name] = {key: entry.value for key, entry in done.result().items()}
                except KafkaException as failed:
                    if not may_pass(failed, _UNHEARD_OF) or deadline.is_past:
                        doing = f"{address.url}: the settings of the topic {resource.name} cannot be read"
                        needs = self._needs(resource.name, DESCRIBE_CONFIGS, address)
                        raise storage_error(doing, failed, needs=needs) from failed
            if len(found) < len(wanted):
                self._ask_brokers(deadline)
        return found

    def _request_s(self, deadline: Deadline) -> float:
        return max(min(deadline.left_s, REQUEST_S), POLL_S)

    def _ask_brokers(self, deadline: Deadline) -> None:
        """Wait a little, and refresh the metadata, which names the current controller.

        No request of the client may be pending: a replaced client drops its requests.
        """
        time.sleep(POLL_S)
        try:
            self._admin.list_topics(timeout=self._request_s(deadline))
        except KafkaException:
            self._unanswered += 1
            if self._clients is not None and self._unanswered in _ANOTHER_AFTER:
                self._admin = self._clients.admin()


def _new(name: str, partitions: int, settings: Mapping[str, str]) -> NewTopic:
    return NewTopic(name, num_partitions=partitions, config=dict(settings))


def _new_contents(topics: Topics, partitions: int) -> NewTopic:
    return _new(topics.contents, 2 * partitions, {**_CONTENTS, **_ERASED_WITHIN_DAY})


def _id_of(topic: TopicDescription, address: Address) -> bytes:
    log_id = base64.urlsafe_b64decode(f"{topic.topic_id}==")
    if len(log_id) != 16 or not any(log_id):
        raise StorageError(f"{address.url}: its broker gives no topic ids; a log needs Kafka 2.8 or newer")
    return log_id
