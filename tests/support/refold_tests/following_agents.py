"""Agents for tests of following: they print what they see, and fail on the changes that the environment names."""

from __future__ import annotations

import os
import time
from pathlib import Path

from refold.streams.changes import Change
from refold.streams.client import Log
from refold.streams.worker.agents import changes_agent


@changes_agent("document")
def sees(change: Change, log: Log) -> None:
    """Print each change.

    Raise at the change that REFOLD_TEST_POISON names, as `entity vN`. At the one that REFOLD_TEST_GATE names, as
    `entity vN=PATH`, print it and wait until the path exists.
    """
    name = f"{change.entity} v{change.to_version}"
    gated, _, gate = os.environ.get("REFOLD_TEST_GATE", "").partition("=")
    if name == gated and not Path(gate).exists():
        print("at", name, flush=True)
        while not Path(gate).exists():
            time.sleep(0.02)
    if os.environ.get("REFOLD_TEST_POISON") == name:
        raise ValueError("poison")
    log.observe("document/seen", {"fields": {name: True}}, source="sees")
    print("saw", name, flush=True)


@changes_agent("run")
def never(change: Change, log: Log) -> None:
    """Follow a type that none of these changes has."""
    print("wrong", change.entity, flush=True)
