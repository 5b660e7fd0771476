"""The settings of a broker that is small, starts fast, detects a lost broker soon, and otherwise behaves like Kafka.

These keep Kafka's defaults: log cleaning and retention (set per topic) and transaction timeouts (up to 15 minutes).

The ports of a cluster's nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from refold.testing import processes
from refold.testing.processes import HOST

CONTROLLER = "CONTROLLER"


class Ports(NamedTuple):
    """The ports on which one node listens."""

    client: int
    controller: int


def node_settings(number: int, ports: Sequence[Ports], data: Path, protocol: str = "PLAINTEXT") -> dict[str, str]:
    """Return the server.properties of node `number` (from 1); the cluster has a node for each item of `ports`."""
    own = ports[number - 1]
    voters = ",".join(f"{index}@{HOST}:{each.controller}" for index, each in enumerate(ports, 1))
    copies, in_sync_min = str(len(ports)), str(len(ports) // 2 + 1)
    return {
        "process.roles": "broker,controller",
        "node.id": str(number),
        "log.dirs": str(data),
        "listeners": f"{protocol}://{HOST}:{own.client},{CONTROLLER}://{HOST}:{own.controller}",
        "listener.security.protocol.map": f"{CONTROLLER}:{protocol},{protocol}:{protocol}",
        "inter.broker.listener.name": protocol,
        "controller.listener.names": CONTROLLER,
        "controller.quorum.voters": voters,
        # A misspelt name must not create a topic.
        "auto.create.topics.enable": "false",
        "default.replication.factor": copies,
        "min.insync.replicas": in_sync_min,
        "offsets.topic.num.partitions": "4",
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync_min,
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": in_sync_min,
        # A transaction that timed out is aborted within one second, not ten.
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        "group.min.session.timeout.ms": "1000",
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.min.heartbeat.interval.ms": "100",
        # A killed broker's partitions get other leaders after some seconds.
        "broker.session.timeout.ms": "4000",
        "broker.heartbeat.interval.ms": "500",
        "controller.quorum.fetch.timeout.ms": "2000",
        "replica.lag.time.max.ms": "5000",
        # By default the cleaner's table alone would take 128 MB of heap.
        "log.cleaner.dedupe.buffer.size": str(8 << 20),
        "num.network.threads": "2",
        "num.io.threads": "4",
        "background.threads": "2",
        # Remove files of deleted topics soon: a test run creates thousands.
        "log.segment.delete.delay.ms": "5000",
    }


def as_properties(settings: Mapping[str, str]) -> str:
    """Return settings as a Java properties file."""
    return "".join(f"{name}={_escaped(value)}\n" for name, value in settings.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def free_ports(nodes: int) -> list[Ports]:
    """Return a pair of ports for each node; they were free a moment ago."""
    found = processes.free_ports(2 * nodes)
    return [Ports(*found[2 * index : 2 * index + 2]) for index in range(nodes)]


def ports_from(first: int, nodes: int) -> list[Ports]:
    """Return the clients' ports from `first` on, followed by the controllers' ports."""
    return [Ports(first + index, first + nodes + index) for index in range(nodes)]
