"""Which worker has a partition, and where its pages are: as the members of the group say.

A worker's client.id is `refold-worker URL`: whoever may describe the group finds the pages of all its workers.
"""

from __future__ import annotations

from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription

from refold.streams.log.kafka.faults import error_of, storage_error
from refold.streams.log.kafka.groups import describe_group

CLIENT_ID = "refold-worker "
TIMEOUT_S = 10.0


def client_id(url: str) -> str:
    """What a worker calls itself in its group."""
    return f"{CLIENT_ID}{url}"


def workers_of(admin: AdminClient, group: str, topic: str) -> dict[int, str]:
    """The URL of the worker's pages by partition; without those that nobody has, or one without pages."""
    try:
        found = admin.describe_consumer_groups([group], request_timeout=TIMEOUT_S)[group].result()
    except KafkaException as failed:
        raise storage_error(f"who has which partition, the group {group} does not say", failed) from failed
    return {
        partition: each.url for each in _members(found, topic) if each.url is not None for partition in each.partitions
    }


class Member(NamedTuple):
    """Who is in the group, and the partitions that are its own."""

    client_id: str
    partitions: tuple[int, ...]

    @property
    def url(self) -> str | None:
        """Of a worker's pages; None for one without pages."""
        return self.client_id.removeprefix(CLIENT_ID) if self.client_id.startswith(CLIENT_ID) else None


def members_of(admin: AdminClient, group: str, topic: str, timeout_s: float, needs: str = "") -> list[Member]:
    """Who is in the group at this moment, asked for until a coordinator answers; nobody where there is no such group.

    needs: what is said where an access list lacks the right. StorageError.
    """
    try:
        return _members(describe_group(admin, group, timeout_s), topic)
    except KafkaException as failed:
        error = error_of(failed)
        if error is not None and error.code() == KafkaError.GROUP_ID_NOT_FOUND:
            return []
        raise storage_error(f"who is in the group {group} cannot be had", failed, needs=needs) from failed


def _members(found: ConsumerGroupDescription, topic: str) -> list[Member]:
    return sorted(
        Member(each.client_id, tuple(sorted(
            place.partition for place in each.assignment.topic_partitions if place.topic == topic
        )))
        for each in found.members
    )  # fmt: skip
