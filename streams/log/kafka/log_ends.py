"""The ends of a log's topics on Kafka at one moment."""

from __future__ import annotations

from typing import NamedTuple

from refold.streams.log.kafka.offsets import KafkaPartition, Offsets
from refold.streams.log.kafka.topics import Topics


class LogEnds(NamedTuple):
    """The ends of observations and changes by partition, at one moment."""

    observations: dict[int, int]
    changes: dict[int, int]


def read_ends(topics: Topics, partitions: int, offsets: Offsets) -> LogEnds:
    """Read the present ends of `.observations` and `.changes`.

    Args:
        topics: The log's topics.
        partitions: The number of its partitions.
        offsets: Reads the ends.
    """
    observations = [KafkaPartition(topics.observations, each) for each in range(partitions)]
    changes = [KafkaPartition(topics.changes, each) for each in range(partitions)]
    ends = offsets.ends([*observations, *changes])
    return LogEnds(
        {place.partition: ends[place] for place in observations},
        {place.partition: ends[place] for place in changes},
    )
