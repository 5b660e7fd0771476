"""Hand-made examples: observations of one entity, and their result by the naive fold."""

from __future__ import annotations

from typing import Any

from refold.avro.observation import Kind, Link, Observation, Source
from refold_tests.histories import EVERYTHING, with_offsets
from refold_tests.reference import reference_state

ENTITY = "everything/1"


def saw(observed_at: int, patch: dict[str, Any] | None = None, **envelope: Any) -> Observation:
    """Return an assertion about ENTITY. The source is given as agent, run and seq."""
    source = Source(envelope.pop("agent", "a"), envelope.pop("run", ""), "", "", envelope.pop("seq", 0))
    return Observation(
        **{"entity": ENTITY, "observed_at": observed_at, "source": source, "patch": patch or {}, **envelope}
    )


def linked(kind: Kind, observed_at: int, priority: int = 0, **validity: int) -> Observation:
    """Return a link of ENTITY, or an unlink."""
    return saw(observed_at, kind=kind, priority=priority, link=Link("about", "document/x", **validity))


def state_of(*observations: Observation) -> dict[str, Any]:
    """Return the state of ENTITY by the naive fold."""
    return reference_state(EVERYTHING, ENTITY, with_offsets(observations))


def fields_of(*observations: Observation) -> dict[str, Any]:
    """Return the fields of ENTITY by the naive fold."""
    fields: dict[str, Any] = state_of(*observations)["fields"]
    return fields
