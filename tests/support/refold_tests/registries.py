"""The run's Schema Registry (servers.py). Tests keep apart by their logs' prefixes, which are in every subject.

SCHEMA_REGISTRY_URL names one that runs already, which needs no password: then tests that share one use that.
"""

from __future__ import annotations

import os

import pytest

from refold.testing.processes import ServerMissing
from refold.testing.registry import missing, start_registry
from refold_tests import servers
from refold_tests.absent import without
from refold_tests.servers import Owner, Started

GIVEN = "SCHEMA_REGISTRY_URL"
NEEDS = "needs a Schema Registry: "


def start() -> Started:
    """The run's registry, for `servers.own`."""
    started = start_registry()
    return Started(started, started.url)


def shared(owner: Owner | None) -> str:
    """The URL of the run's registry, started if need be; without what it takes the test is skipped, in CI failed."""
    if given := os.environ.get(GIVEN):
        return given
    try:
        return servers.address_of(owner, "schema registry")
    except ServerMissing as error:
        without(f"{NEEDS}{error}")


def require(item: pytest.Item) -> None:
    """Ends a test that needs a registry where none can be had."""
    if GIVEN in os.environ and "schema_registry" in getattr(item, "fixturenames", ()):
        return
    if (reason := missing()) is not None:
        without(f"{NEEDS}{reason}")
