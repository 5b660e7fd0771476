"""What may be wrong with a log's topics: one is missing, or has a wrong number of partitions or a wrong setting."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from confluent_kafka.admin import TopicDescription

from refold.avro.errors import StorageError
from refold.streams.log.kafka.url import Address

IN_SYNC_MIN = "min.insync.replicas"
MAX_BYTES = "max.message.bytes"


class TopicProblem(NamedTuple):
    """What is wrong with a topic, and how to fix it.

    Attributes:
        is_missing: Whether the broker lacks the topic.
    """

    topic: str
    problem: str
    remedy: str
    is_missing: bool = False

    def error(self, address: Address) -> StorageError:
        """Return the error that opening the log raises."""
        return StorageError(f"{address.url}: the topic {self.topic} {self.problem}; {self.remedy}")


def missing_topics(
    needed: Iterable[str], observations: str, schemas: str, found: Mapping[str, TopicDescription]
) -> Iterator[TopicProblem]:
    """Yield the topics that are missing, or whose number of partitions does not fit `.observations`.

    Args:
        needed: the names of all topics that the log needs.
        observations: the topic that decides the number of partitions.
        schemas: the topic that has one partition.
        found: the topics that exist.
    """
    partitions = len(found[observations].partitions) if observations in found else None
    for name in needed:
        if name not in found:
            yield TopicProblem(name, "is missing; it was there when the log was made",
                        "restore it, or begin a log under another prefix", is_missing=True)  # fmt: skip
            continue
        count, wanted = len(found[name].partitions), 1 if name == schemas else partitions
        if count != wanted:
            yield TopicProblem(name, f"has {count} partitions, and this log needs {wanted}",
                        "begin a log under another prefix")  # fmt: skip


def wrong_settings(
    wanted: Mapping[str, Mapping[str, str]],
    found: Mapping[str, TopicDescription],
    settings: Mapping[str, Mapping[str, str | None]],
    address: Address,
) -> Iterator[TopicProblem]:
    """Yield each setting that differs from what a log needs, unless it is a limit that is set wider.

    Args:
        wanted: the needed settings of each topic, by the topic's name.
        found: the topics, for their numbers of replicas.
        settings: the topics' settings.
        address: the log, for the command that mends a setting.
    """
    for name, needed in wanted.items():
        in_sync = {IN_SYNC_MIN: "2"} if copies(found[name]) >= 3 else {}
        for key, wanted_value in {**needed, **in_sync}.items():
            value = settings[name].get(key)
            if value != wanted_value and not _is_wider(key, value, wanted_value):
                yield TopicProblem(
                    name, f"has {key}={value}, and a log needs {wanted_value}",
                    f"set it: kafka-configs.sh --bootstrap-server {address.servers} --alter --entity-type topics "
                    f"--entity-name {name} --add-config {key}={wanted_value}",
                )  # fmt: skip


def copies(topic: TopicDescription) -> int:
    """Return the number of replicas that every partition of a topic has."""
    return min((len(each.replicas) for each in topic.partitions), default=0)


def _is_wider(key: str, value: str | None, wanted: str) -> bool:
    return key in {MAX_BYTES, IN_SYNC_MIN} and value is not None and value.isdecimal() and int(value) >= int(wanted)
