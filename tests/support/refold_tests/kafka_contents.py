"""Records in a log's topic of contents that refold's store did not write."""

from __future__ import annotations

from refold.avro.observation import ID_BYTES
from refold.streams.checksum import sealed
from refold.streams.log.kafka.content_index import (
    PUT,
    TOKEN_BYTES,
    Chunks,
    chunk_key,
    chunks_value,
    partition_of_content,
)
from refold.streams.log.kafka.offsets import KafkaPartition
from refold.streams.log.kafka.url import parse_url
from refold_tests.kafka_topics import Broker


def contents_of(url: str) -> tuple[Broker, str, int]:
    """Return the broker of a log, its topic of contents, and the log's number of partitions."""
    address = parse_url(url)
    broker = Broker(address.servers, address.prefix)
    topic = f"{address.prefix}.contents"
    return broker, topic, len(broker.admin.list_topics(topic, 20).topics[topic].partitions) // 2


def forge(
    url: str, digest: bytes, content: bytes, *, key: bytes | None = None, offset: int | None = None,
    is_sealed: bool = True,
) -> int:  # fmt: skip
    """Claim that a content was put, with a single chunk that holds other bytes; return the chunk's offset.

    key: the key of the chunk, instead of the correct one. offset: the offset of the chunk to name, instead of that of
    the written one. is_sealed: whether the chunk has its checksum.
    """
    broker, topic, partitions = contents_of(url)
    version = digest + b"forged" + bytes(TOKEN_BYTES - 6)
    place = KafkaPartition(topic, partition_of_content(digest, partitions))
    chunks = KafkaPartition(topic, place.partition + partitions)
    broker.produce(
        chunks, [sealed(content) if is_sealed else content], key=chunk_key(version, 0) if key is None else key
    )
    at = broker.offsets.ends([chunks], committed=False)[chunks] - 1
    named = at if offset is None else offset
    broker.produce(place, [chunks_value(Chunks(len(content), [named]))], key=PUT + version)
    assert len(version) == ID_BYTES + TOKEN_BYTES
    return at
