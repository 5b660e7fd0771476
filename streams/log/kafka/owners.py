"""Which worker has a partition, and where its pages are: as the members of the group say.

A worker's client.id is `refold-worker URL`: whoever may describe the group finds the pages of all its workers.
"""

from __future__ import annotations

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from refold.streams.log.kafka.faults import storage_error

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
        place.partition: member.client_id.removeprefix(CLIENT_ID)
        for member in found.members
        if member.client_id.startswith(CLIENT_ID) and member.assignment is not None
        for place in member.assignment.topic_partitions
        if place.topic == topic
    }
