"""Agents for tests of following: they say what they see, and fail on what the environment names."""

from __future__ import annotations

import os
import time
from pathlib import Path

from refold.streams.changes import Change
from refold.streams.client import Log
from refold.streams.worker.agents import changes_agent


@changes_agent("document")
def sees(change: Change, log: Log) -> None:
    """Say each change. Raise at the one named by REFOLD_TEST_POISON, `entity vN`; at the one named by REFOLD_TEST_GATE,
    `entity vN=PATH`, say so and wait until the path exists."""
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
    """Of a type that none of these changes is of."""
    print("wrong", change.entity, flush=True)
