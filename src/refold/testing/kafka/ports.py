"""The ports of a cluster's nodes."""

from __future__ import annotations

from refold.testing import processes
from refold.testing.kafka.settings import Ports


def free_ports(nodes: int) -> list[Ports]:
    """A pair for each node, free a moment ago."""
    found = processes.free_ports(2 * nodes)
    return [Ports(*found[2 * index : 2 * index + 2]) for index in range(nodes)]


def ports_from(first: int, nodes: int) -> list[Ports]:
    """Clients' ports from `first` on, the controllers' behind them."""
    return [Ports(first + index, first + nodes + index) for index in range(nodes)]
