"""What `refold doctor` says of a log's workers: which are alive, by their group, and how far the group is behind.

That nobody folds is no problem of the log: reading works without, and a log may be made before its first worker runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from refold.avro.errors import Denied, RefoldError
from refold.explorer.cli.findings import Finding

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from refold.streams.log.kafka.clients import Clients
    from refold.streams.log.kafka.owners import Member
    from refold.streams.log.kafka.url import Address

REMEDY = "see whether all brokers are up: the one that coordinates the group gave no answer"


def workers(clients: Clients, admin: AdminClient, address: Address, timeout_s: float) -> Iterator[Finding]:
    """Who folds which partitions of a log that is there, and the group's lag."""
    from confluent_kafka import KafkaException

    from refold.streams.log.kafka.access import DESCRIBE, GROUP, Grant
    from refold.streams.log.kafka.committed import CommittedOffsets
    from refold.streams.log.kafka.faults import storage_error
    from refold.streams.log.kafka.groups import group_lag
    from refold.streams.log.kafka.owners import members_of
    from refold.streams.log.kafka.topics import Topics

    topics = Topics(address.prefix)
    subject = "workers"
    try:
        needs = clients.lacks(Grant(GROUP, topics.group, DESCRIBE))
        members = members_of(admin, topics.group, topics.observations, timeout_s, needs)
        found = admin.list_topics(topics.observations, timeout_s).topics[topics.observations]
        if found.error is not None:
            raise KafkaException(found.error)
        yield Finding(subject, True, _alive(members, sorted(found.partitions), topics.group, address.url))
        subject = "lag"
        with CommittedOffsets(clients, topics.group, topics.observations, stable=False) as committed:
            lag = group_lag(committed, admin, topics, found.partitions, timeout_s)
        yield Finding(subject, True, _behind(lag, len(found.partitions), topics.group))
    except Denied as error:
        yield Finding(subject, True, f"not looked at: {error}")
    except RefoldError as error:
        yield Finding(subject, False, str(error), REMEDY)
    except KafkaException as failed:
        said = storage_error(f"the group {topics.group} cannot be looked at", failed, clients.said)
        yield Finding(subject, False, str(said), REMEDY)


def _alive(members: list[Member], partitions: list[int], group: str, url: str) -> str:
    if not members:
        return (f"none in the group {group}: nobody folds, and reading works without; to start one: "
                f"refold worker --log {url} --data DIR")  # fmt: skip
    said = [f"{each.url or each.client_id} {_of(each.partitions)}" for each in members]
    free = {*partitions}.difference(*(each.partitions for each in members))
    said += [f"nobody {_of(sorted(free))}, as for a moment while workers come and go"] if free else []
    return f"{len(members)} alive: {'; '.join(said)}"


def _of(partitions: list[int] | tuple[int, ...]) -> str:
    if not partitions:
        return "without a partition"
    return f"with {'partition' if len(partitions) == 1 else 'partitions'} {', '.join(map(str, partitions))}"


def _behind(lag: dict[int, int], partitions: int, group: str) -> str:
    """In all, and each partition that is behind."""
    rows = [f"partition {number}: {offsets:,}" for number, offsets in sorted(lag.items()) if offsets]
    unsaid = partitions - len(lag)
    more = f"; of {unsaid} of {partitions} partitions it is not known" if unsaid else ""
    each = f" ({', '.join(rows)})" if rows else ""
    return f"{sum(lag.values()):,} recorded and not yet committed by the group {group}{each}{more}"
