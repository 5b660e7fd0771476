"""The Schema Registry of the test run (servers.py). Tests use different log prefixes, which are part of every subject.

If SCHEMA_REGISTRY_URL names a running one without a password, tests that share a registry use that.
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
    """Start the registry of the test run, for `servers.own`."""
    started = start_registry()
    return Started(started, started.url)


def shared(owner: Owner | None) -> str:
    """Return the URL of the run's registry, starting it if necessary. Without its requirements the test is skipped; in
    CI it fails.
    """
    if given := os.environ.get(GIVEN):
        return given
    try:
        return servers.address_of(owner, "schema registry")
    except ServerMissing as error:
        without(f"{NEEDS}{error}")


def require(item: pytest.Item) -> None:
    """End a test that needs a registry if none is available."""
    if GIVEN in os.environ and "schema_registry" in getattr(item, "fixturenames", ()):
        return
    if (reason := missing()) is not None:
        without(f"{NEEDS}{reason}")
