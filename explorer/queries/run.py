"""One run: the answers of `refold run show`, `refold run steps` and `refold knew`, as JSON.

If the content of a run has expired, or is sealed and the key is unavailable, only its fields in clear are returned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refold.agents.journal.difference import ABSENT, Difference
from refold.agents.journal.record import Recording
from refold.agents.knew import Knowledge, KnownEntity, ReceivedAnswer
from refold.agents.log import AgentLog
from refold.agents.recordings.fields import Fields
from refold.agents.recordings.find import usage_by_run
from refold.agents.recordings.load import own_steps, step_count
from refold.agents.usage.of_runs import UsageSum, summed, usage_of_run
from refold.avro.errors import NotAnswerable
from refold.avro.times import time_text
from refold.explorer.queries.open_runs import UnendedRun, open_run
from refold.explorer.queries.query import arguments_of
from refold.explorer.queries.run_names import known_run, recorded_step
from refold.explorer.queries.run_shapes import failure_json, run_json, step_json, usage_json
from refold.explorer.queries.shapes import holder_json, point_json
from refold.streams.cut import Cut
from refold.streams.view import EntityView

TIMES = {"started": "started_at", "ended": "ended_at"}
TEXTS = {
    "agent": "agent", "version": "agent_version", "outcome": "outcome", "user": "user", "task": "task",
    "parent": "parent_run", "hash": "hash", "retention_class": "retention_class",
}  # fmt: skip


def clear_json(log: AgentLog, run: str, cut: Cut, why: NotAnswerable | None) -> dict[str, Any]:
    """Return the parts of a run and of its own steps that are stored in clear.

    Args:
        log: The log to read.
        run: The id of the run.
        cut: The point to read at.
        why: Why the content is missing; None if it is not. It becomes the key `content`.
    """
    fields = Fields(log.state(f"run/{run}", cut), log.vault)
    before = fields.plain("forked_at_step", 0)
    steps = own_steps(lambda names: log.states(names, cut), [(run, before, step_count(fields))])[run]
    times = {name: fields.plain(field) for name, field in TIMES.items()}
    return {
        "run": run,
        **{name: fields.plain(field) for name, field in TEXTS.items()},
        **{name: None if micros is None else time_text(micros) for name, micros in times.items()},
        "steps": before + len(steps),
        "error": None if fields.plain("outcome") == "succeeded" else _exception(fields.plain("error")),
        "content": None if why is None else str(why),
        "layers": [
            _step_json(number, Fields(view, log.vault)) for number, view in enumerate(steps, before + 1)
        ],
    }  # fmt: skip


def _exception(record: Any) -> str | None:
    """Return the class name of an error. None if the error's record is not stored in clear."""
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


def knowledge_json(agent: str, found: Knowledge) -> dict[str, Any]:
    """Return what an agent had read and which answers it had received by a point. Each read comes with what the log
    held at that point.
    """
    return {
        "agent": agent,
        **point_json(found.point),
        "reads": [read_json(each) for each in found.reads],
        "answers": [_answer_json(each) for each in found.answers],
        "unread": [each._asdict() for each in found.unread],
    }


def read_json(given: KnownEntity) -> dict[str, Any]:
    """Return one read in JSON."""
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
        "differing": [_difference_json(each, held) for each in given.differing],
    }  # fmt: skip


def _answer_json(each: ReceivedAnswer) -> dict[str, Any]:
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


def _difference_json(each: Difference, held: EntityView | None) -> dict[str, Any]:
    """Return one difference in JSON. A side without a value has no key. holder: the observation that set what the log
    held, unless the field has elements, which are set one by one.
    """
    sides = (("known", each.left), ("held", each.right))
    found = {"path": each.path, **{name: value for name, value in sides if value is not ABSENT}}
    fields = {} if held is None else held.definition.definition.by_first_name
    if held is not None and each.field in held.fields and fields[each.field].reducer not in ("union", "append", "map"):
        found["holder"] = holder_json(held.holder(each.field))
    return found


@dataclass(frozen=True, slots=True)
class RunQuery:
    """A whole run.

    Attributes:
        run: The run's id, or the beginning of it.
    """

    run: str
    at: str | None = None

    @property
    def arguments(self) -> list[str]:
        """The arguments of `refold run show`."""
        return arguments_of(["run", "show"], {"at": self.at}, self.run)

    def answer(self, log: AgentLog) -> dict[str, Any]:
        """Return the run and its steps; if its content cannot be read, the fields stored in clear."""
        cut = log.point(self.at).cut
        run = known_run(log, self.run, cut)
        try:
            recording = log.recording(run, cut)
        except NotAnswerable as error:
            return clear_json(log, run, cut, error)
        known = known_of(log, recording, cut, is_now=self.at is None)
        return whole_json(recording, usage_of(log, recording, cut), known=known)


def known_of(log: AgentLog, run: Recording, cut: Cut, *, is_now: bool) -> UnendedRun | None:
    """Return what is known of a run that has not ended; None if it has.

    Args:
        cut: The point.
        is_now: See open_runs.
    """
    return None if run.outcome or run.ended_at else open_run(log, run.run, len(run.steps), cut, is_now=is_now)


def usage_of(log: AgentLog, run: Recording, cut: Cut) -> UsageSum | None:
    """Return what the run's model calls used; None if none reports it.

    A run that was imported or received has no calls in its recording: there it is in the fields of its steps.
    """
    if run.has_code:
        return summed(usage_of_run(run))
    return usage_by_run(log, log.vault, [f"run/{run.run}"], cut)[run.run]


def whole_json(
    run: Recording, usage: UsageSum | None, chain: dict[str, Any] | None = None, known: UnendedRun | None = None
) -> dict[str, Any]:  # fmt: skip
    """Return a run with its steps.

    Args:
        run: The run.
        usage: What its model calls used.
        chain: The result of checking its hashes; None: they were not checked.
        known: Of a run that has not ended.
    """
    layers = [step_json(step, has_code=run.has_code) for step in run.steps]
    head = {**run_json(run), "usage": usage_json(usage)}
    return {**head, "chain": chain, "layers": layers, **({} if known is None else {"open": known.json()})}


@dataclass(frozen=True, slots=True)
class StepsQuery:
    """The steps of a run, or one of them.

    Attributes:
        step: The number of the step; None: all steps.
    """

    run: str
    at: str | None = None
    step: int | None = None

    @property
    def arguments(self) -> list[str]:
        """The arguments of `refold run steps`."""
        return arguments_of(["run", "steps"], {"at": self.at, "step": self.step}, self.run)

    def answer(self, log: AgentLog) -> list[dict[str, Any]]:
        """Return one object for each step. One step is read without the others, unless its content needs them."""
        run = recorded_step(log, self.run, log.point(self.at).cut, self.step)
        return steps_json(run, self.step)


def steps_json(run: Recording, number: int | None = None) -> list[dict[str, Any]]:
    """Return all steps, or only the one with the given number."""
    return [step_json(step, has_code=run.has_code) for step in run.steps if number in (None, step.number)]


@dataclass(frozen=True, slots=True)
class KnewQuery:
    """What an agent knew at a moment.

    Args:
        agent: The agent's name.
        at: The moment, as WHEN; None: now.
        run: Only what it knew in this run; None: in all its runs.
        every: Whether to list every read and answer instead of only the latest.
        step: Only what it read and received in this step of the run; None: in all steps.
    """

    agent: str
    at: str | None = None
    run: str | None = None
    every: bool = False
    step: int | None = None

    @property
    def arguments(self) -> list[str]:
        """The arguments of `refold knew`."""
        named = {"at": self.at, "run": self.run, "step": self.step, "all": self.every}
        return arguments_of(["knew"], named, self.agent)

    def answer(self, log: AgentLog) -> dict[str, Any]:
        """Return the agent's reads and answers, and what the log held at that moment."""
        return knowledge_json(self.agent, log.knew(self.agent, self.at, run=self.run, step=self.step, every=self.every))
