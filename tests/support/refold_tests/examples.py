"""Examples worked out by hand: observations of one entity, and what the naive fold makes of them."""

from __future__ import annotations

from typing import Any

from refold.avro.observation import Kind, Link, Observation, Source
from refold_tests.histories import EVERYTHING, with_offsets
from refold_tests.reference import reference_state

ENTITY = "everything/1"


def saw(observed_at: int, patch: dict[str, Any] | None = None, **envelope: Any) -> Observation:
    """An assert about ENTITY; the source is given as agent, run and seq."""
    source = Source(envelope.pop("agent", "a"), envelope.pop("run", ""), "", "", envelope.pop("seq", 0))
    return Observation(
        **{"entity": ENTITY, "observed_at": observed_at, "source": source, "patch": patch or {}, **envelope}
    )


def linked(kind: Kind, observed_at: int, priority: int = 0, **validity: int) -> Observation:
    """A link of ENTITY, or the end of one."""
    return saw(observed_at, kind=kind, priority=priority, link=Link("about", "document/x", **validity))


def state_of(*observations: Observation) -> dict[str, Any]:
    """The state of ENTITY that the naive fold gives."""
    return reference_state(EVERYTHING, ENTITY, with_offsets(observations))


def fields_of(*observations: Observation) -> dict[str, Any]:
    """Its fields."""
    fields: dict[str, Any] = state_of(*observations)["fields"]
    return fields
