"""Fills a log with everything that a fold meets."""

from __future__ import annotations

from typing import Any

from refold.avro.observation import Source

_KINDS = ("tool_config", "run", "step")


def fill(log: Any, seed: int) -> None:
    """Entities of several types, with links, clears, retractions, repeats and late observations."""
    made: list[str] = []
    for number in range(600):
        entity = f"{_KINDS[number % 3]}/{seed}-{number % 41}"
        patch: dict[str, Any] = {"tags": [f"t{number % 5}"]} if number % 11 == 0 else {"duration_ms": number / 4}
        if entity.startswith("tool_config"):
            patch = {"rate_limit": number, "enabled": number % 2 == 0}
        late = 1_700_000_000_000_000 + (number * 1000 if number % 13 else -number)
        made.append(log.observe(entity, patch, source=f"agent-{number % 7}", observed_at=late))
        if number % 50 == 49:
            log.observe(entity, cleared=[next(iter(patch))], source="agent-0")
            log.link(entity, "uses", "tool_config/other", source="agent-0")
        if number % 97 == 96:
            log.observe(entity, retracts=[made[-42]], source="agent-0")  # another entity's: never seen
        if number % 151 == 150:
            log.observe(entity, retracts=[made[-124]], source="agent-0")
    for number in (*range(12), *range(12)):  # each again, when it is no longer among the last ones
        source = Source("agent", f"run {seed}", seq=number)
        log.observe(f"tool_config/again-{seed}", {"rate_limit": number}, source=source, observed_at=number)
    log.flush()
