"""Read from a log what a diagnosis needs of a run (agents/heal/diagnosis.py)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from refold.agents.compare.compare import compare
from refold.agents.golden.file import Golden, found, read
from refold.agents.heal.diagnosis import Denial, Evidence, GoldenDivergence, StaleRead
from refold.agents.heal.lease import healer_elsewhere
from refold.agents.journal.record import Recording
from refold.agents.log import AgentLog
from refold.agents.policy.decision_log import denial_entity
from refold.agents.policy.guard import calls_of, is_denial
from refold.agents.policy.rules import LoopLimit, Policy
from refold.agents.recorder.observations import run_entity
from refold.agents.supervise.lease import ACTIVE
from refold.agents.supervise.listing import agents
from refold.avro.errors import NotAnswerable, UnknownEntity
from refold.streams.view import EntityView

STEPS_MAX = 512
"""The last steps of a run that observations are named of."""


def examine(
    log: AgentLog, run: str, *, policy: Policy | None = None, golden: Iterable[Golden] = (), supervised: str = ""
) -> Evidence:  # fmt: skip
    """Return what the log holds of a run.

    Args:
        log: The log.
        run: The run's id.
        policy: The policy that says what a loop is; None for the default limits.
        golden: Golden traces that the run may depart from.
        supervised: The agent in whose place this process heals the run.

    Raises:
        UnknownEntity: There is no such run.
        NotAnswerable: Its content is gone, or no key here opens it.
    """
    recording = log.recording(run)
    limit = policy.loop if policy is not None and policy.loop is not None else LoopLimit()
    questions = tuple(each.id for each in log.questions() if each.run == run)
    unknown = tuple(each.key for each in log.effects.list(run=run, status="unknown"))
    return Evidence(
        recording, _observations(log, recording), tuple(_denials(log, recording)), tuple(_stale(log, recording)),
        tuple(_divergences(recording, golden)), questions, unknown, limit,
        _runner(log, run, supervised) or healer_elsewhere(log, run),
    )  # fmt: skip


def _runner(log: AgentLog, run: str, supervised: str) -> str:
    """Return which agent of a supervisor runs a run now; empty if none does.

    The agent in whose place this process heals is left out. So is an agent that is `healing`: its healing has a lease
    of its own.
    """
    for each in agents(log, log.now_micros()):
        if each.run == run and each.name != supervised and each.status in ACTIVE - {"healing"}:
            return (
                f"run {run} is run by the agent {each.name} of {each.owner}, which is {each.status}; stop it first: "
                f"refold agents stop {each.name}"
            )
    return ""


def golden_of(folder: str, agent: str) -> list[tuple[Path, Golden]]:
    """Return the golden traces of an agent in a folder, with their files; none if no folder is given.

    Raises:
        InputError: There is no such folder, or no golden trace in it.
        CorruptionError: A file was edited and not signed again.
    """
    if not folder:
        return []
    read_ones = [(path, read(path)) for path in found(Path(folder))]
    return [each for each in read_ones if each[1].run.agent == agent]


def _observations(log: AgentLog, run: Recording) -> Mapping[str, str]:
    own = [run_entity(run.run), *(f"step/{run.run}#{step.number}" for step in run.steps[-STEPS_MAX:])]
    return {name: _holder(view, "outcome", "status") for name, view in log.states(own).items()}


def _holder(view: EntityView, *fields: str) -> str:
    """Return the observation that set the first of some fields that has a value."""
    field = next((each for each in fields if each in view.tree["fields"]), None)
    return "" if field is None else view.observations_of(field)[0].hex()


def _denials(log: AgentLog, run: Recording) -> Iterator[Denial]:
    denied = [(step, call) for step, call in calls_of(run) if is_denial(call)]
    names = list(dict.fromkeys(denial_entity(step, call.asked) for step, call in denied))
    for view in log.states(names).values() if names else ():
        fields = view.fields
        details = fields.get("details") or {}
        step = str(fields.get("step", ""))
        if step.rpartition("#")[0] == run.run:
            yield Denial(
                int(step.rpartition("#")[2]), details.get("call", ""), details.get("policy", ""),
                details.get("rule", ""), str(fields.get("reason", "")), tuple(details.get("evidence", ())),
                _holder(view, "reason", "verb"),
            )  # fmt: skip


def _stale(log: AgentLog, run: Recording) -> Iterator[StaleRead]:
    with contextlib.suppress(UnknownEntity, NotAnswerable):
        for each in log.knew(run.agent, run=run.run).reads:
            if each.read.run != run.run or each.held is None or not each.newer_by or not each.differing:
                continue
            fields = tuple(dict.fromkeys(one.field for one in each.differing))
            there = [name for name in fields if name in each.held.tree["fields"]]
            ids = dict.fromkeys(held.hex() for name in there for held in each.held.observations_of(name))
            yield StaleRead(each.read.step, each.read.entity, fields, tuple(ids))


def _divergences(run: Recording, golden: Iterable[Golden]) -> Iterator[GoldenDivergence]:
    for each in golden:
        if each.known_bad or each.run.agent != run.agent or each.run.input != run.input:
            continue
        parted = compare(each.run, run)
        if parted is not None:
            yield GoldenDivergence(each.name, parted.step, f"{parted.what} differs ({parted.why})")
