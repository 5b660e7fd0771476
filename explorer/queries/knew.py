"""The JSON of what an agent knew, as `refold knew` prints it."""

from __future__ import annotations

from typing import Any

from refold.agents.journal.difference import ABSENT, Difference
from refold.agents.knew import Knowledge, KnownEntity
from refold.agents.received_answers import Heard
from refold.avro.times import time_text
from refold.explorer.queries.run_shapes import failure_json
from refold.explorer.queries.shapes import point_json


def knowledge_json(agent: str, found: Knowledge) -> dict[str, Any]:
    """Return what an agent had read and been answered by a point, each read with what the log held then."""
    return {
        "agent": agent,
        **point_json(found.point),
        "reads": [read_json(each) for each in found.reads],
        "heard": [_heard_json(each) for each in found.heard],
        "unheard": [each._asdict() for each in found.unheard],
    }


def read_json(given: KnownEntity) -> dict[str, Any]:
    """Return one read."""
    read, held = given.read, given.held
    return {
        "entity": read.entity,
        "run": read.run,
        "step": read.step,
        "read_at": time_text(read.at),
        "version": given.known.version,
        "state_hash": read.state_hash,
        "cut": read.cut,
        "observations": list(read.observations),
        "fields": given.known.shown(),
        "held": None if held is None else {
            "version": held.version, "state_hash": held.state_hash, "fields": held.shown(),
        },
        "stale": given.is_stale,
        "newer_when_read": given.newer_then,
        "newer_by_then": given.newer_by,
        "differing": [_difference_json(each) for each in given.differing],
    }  # fmt: skip


def _heard_json(each: Heard) -> dict[str, Any]:
    call = each.call
    return {
        "kind": call.asked.kind,
        "name": call.asked.name,
        "run": each.run,
        "step": each.step,
        "attempt": each.attempt,
        "answered_at": time_text(each.at),
        "request": call.asked.request,
        "answer": call.answer,
        "failure": failure_json(call.failure),
    }


def _difference_json(each: Difference) -> dict[str, Any]:
    """A side without a value has no key."""
    sides = (("known", each.left), ("held", each.right))
    return {"path": each.path, **{name: value for name, value in sides if value is not ABSENT}}
