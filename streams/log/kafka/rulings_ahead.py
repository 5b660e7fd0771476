"""The rulings of a log, including those after a batch that cannot be read in the topics of the rulings."""

from __future__ import annotations

from contextlib import closing

from refold.avro.quarantine import Ruling, Rulings
from refold.streams.log.kafka.clients import Clients
from refold.streams.log.kafka.damaged import UnreadableBatches
from refold.streams.log.kafka.manifests import MARKERS, is_entry
from refold.streams.log.kafka.offsets import KafkaPartition, Offsets
from refold.streams.log.kafka.quarantine_records import DECISION, HEADER, decision_key, decision_of
from refold.streams.log.kafka.range_reader import LogReaders
from refold.streams.log.kafka.topics import Topics


def rulings_ahead(topics: Topics, clients: Clients, offsets: Offsets, timeout_s: float) -> Rulings:
    """Return all rulings whose two records can be read, even if other records cannot.

    Reads `.schemas` and partition 0 of `.manifests` to their ends. Used only if one of them is damaged.
    """
    found = Rulings()
    manifests, schemas = KafkaPartition(topics.manifests, MARKERS), KafkaPartition(topics.schemas, 0)
    passing = UnreadableBatches(topics, found, is_lenient=True)
    with closing(LogReaders(clients, timeout_s, unreadable=passing)) as reading:
        ends = offsets.ends([schemas])
        ends |= offsets.ends(
            [manifests]
        )  # read later, so that the decision of every token in the first is in the second
        decisions = {
            raw.key: raw.value
            for raw in reading.records(manifests, 0, ends[manifests])
            if raw.key and raw.value and raw.key.startswith(DECISION) and is_entry(MARKERS, raw.key, raw.value)
        }
        for raw in reading.records(schemas, 0, ends[schemas]):
            key = decision_key(raw.header(HEADER) or b"")
            value = decisions.pop(key, None)  # each token counts once
            decision = None if value is None else decision_of(key, value)
            if isinstance(decision, Ruling):
                found.take(decision, raw.offset)
    return found
