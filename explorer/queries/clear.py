"""A run whose content has expired, or is sealed with no key here: what stands in clear of it."""

from __future__ import annotations

from typing import Any

from refold.agents.log import AgentLog
from refold.agents.recordings.fields import Fields
from refold.agents.recordings.load import own_steps, step_count
from refold.avro.errors import NotAnswerable
from refold.avro.times import time_text
from refold.streams.cut import Cut

TIMES = {"started": "started_at", "ended": "ended_at"}
TEXTS = {
    "agent": "agent", "version": "agent_version", "outcome": "outcome", "user": "user", "task": "task",
    "parent": "parent_run", "hash": "hash", "retention_class": "retention_class",
}  # fmt: skip


def clear_json(log: AgentLog, run: str, cut: Cut, why: NotAnswerable | None) -> dict[str, Any]:
    """Return a run and its own steps without their content. content: why it is missing, null if it is not."""
    fields = Fields(log.state(f"run/{run}", cut), log.vault)
    before = fields.plain("forked_at_step", 0)
    steps = own_steps(lambda names: log.states(names, cut), [(run, before, step_count(fields))])[run]
    times = {name: fields.plain(field) for name, field in TIMES.items()}
    return {
        "run": run,
        **{name: fields.plain(field) for name, field in TEXTS.items()},
        **{name: None if micros is None else time_text(micros) for name, micros in times.items()},
        "steps": before + len(steps),
        "error": _exception(fields.plain("error")),
        "content": None if why is None else str(why),
        "layers": [
            _step_json(number, Fields(view, log.vault)) for number, view in enumerate(steps, before + 1)
        ],
    }  # fmt: skip


def _exception(record: Any) -> str | None:
    """Return the class of an error whose record is stored in clear."""
    return record.get("exception") if isinstance(record, dict) else None


def _step_json(number: int, step: Fields) -> dict[str, Any]:
    plain = step.plain
    calls = plain("calls")
    return {
        "step": number,
        "name": plain("name", ""),
        "status": plain("status"),
        "outcome": plain("outcome"),
        "calls": [each["tool"] for each in calls] if isinstance(calls, list) else [],
        "failure": _exception(plain("failure")),
        "state_after": plain("state_after"),
        "hash": plain("turn_hash"),
    }
