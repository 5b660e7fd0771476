"""Why a run went wrong: a pure function of what the log holds of it (agents/heal/examine.py reads that).

    unfinished      it did not end: its process is gone, or still runs; if a lease says that it runs, that is named
    error           it failed, with an exception of this class
    tool            a tool's failure ended it
    loop            its last tool calls repeat, with the same results, or the loop breaker denied one
    budget          a budget of its policy denied a call
    denied          a rule of its policy denied a call
    question        a call of it waits for a person
    stale_read      it read an entity of which the log has newer observations
    divergence      it departs from a golden trace of the same agent with the same input
    unknown_effect  it is not known whether a write took place

Each finding names the steps and the observations that it rests on, and the last good step before it. The last good step
is never before a write that took place: a step that wrote is not undone.

1. A loop's first cycle is good, because it only became a loop by being repeated.
2. An error's last good step is the one before the step that failed.
3. A stale read's and a divergence's last good step is the one before theirs.
4. If a later step made a write, or an observation, the last such step is the last good one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias

from refold.agents.entry import class_name
from refold.agents.journal.record import Call, Recording, Step, child_of
from refold.agents.policy.decision import ApprovalNeeded, PolicyDenied
from refold.agents.policy.facts import AnsweredCall, LoopFinder, result_hash
from refold.agents.policy.guard import calls_of, is_denial
from refold.agents.policy.rules import LoopLimit

FindingKind: TypeAlias = Literal[
    "unfinished", "error", "tool", "loop", "budget", "denied", "question", "stale_read", "divergence",
    "unknown_effect",
]  # fmt: skip
KINDS: tuple[FindingKind, ...] = (
    "unknown_effect", "question", "loop", "budget", "denied", "tool", "error", "unfinished", "stale_read", "divergence",
)  # fmt: skip
"""The kinds, the most telling one first."""
BY_POLICY = frozenset({class_name(PolicyDenied), class_name(ApprovalNeeded)})


class Denial(NamedTuple):
    """A recorded denial.

    Attributes:
        step: The number of its step.
        steps: The steps that it rested on, as RUN#NUMBER.
    """

    step: int
    call: str
    policy: str
    rule: str
    why: str
    steps: tuple[str, ...]
    observation: str


class StaleRead(NamedTuple):
    """A read of an entity that the log now has newer observations of.

    Attributes:
        fields: The fields that differ.
    """

    step: int
    entity: str
    fields: tuple[str, ...]
    observations: tuple[str, ...]


class GoldenDivergence(NamedTuple):
    """The point at which a run departs from a golden trace.

    Attributes:
        step: The number of the step; 0 for the inputs, None for the end.
    """

    golden: str
    step: int | None
    what: str


class Evidence(NamedTuple):
    """The evidence on a run that the log holds.

    Attributes:
        observations: For each entity, the observation that says how the run or the step ended, or that it began.
        loop: The limit that says when calls are a loop.
        questions: The ids of its open questions.
        unknown: The keys of its writes whose status is unknown.
        held: The live process that runs or heals the run, in words; empty if no lease says so.
    """

    recording: Recording
    observations: Mapping[str, str] = {}
    denials: tuple[Denial, ...] = ()
    stale: tuple[StaleRead, ...] = ()
    divergences: tuple[GoldenDivergence, ...] = ()
    questions: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    loop: LoopLimit = LoopLimit()
    held: str = ""


class RunFinding(NamedTuple):
    """One thing that went wrong.

    Attributes:
        name: The class of an error, a tool, a rule, an entity, a golden trace, or the key of an effect.
        said: What happened, in words, without contents of the run.
        at: The number of the last good step before it; 0: before the first.
        steps: The steps that it rests on, as RUN#NUMBER.
        observations: The observations that it rests on, by their ids in hex.
    """

    kind: FindingKind
    name: str
    said: str
    at: int
    steps: tuple[str, ...] = ()
    observations: tuple[str, ...] = ()


class Diagnosis(NamedTuple):
    """The findings on a run that went wrong, the most specific one first.

    Attributes:
        outcome: How it ended; `running` if it did not.
        held: Which live process runs or heals it; nobody else may.
    """

    run: str
    agent: str
    outcome: str
    findings: tuple[RunFinding, ...]
    held: str = ""

    @property
    def failure(self) -> str:
        """The name under which this failure is counted: the first finding's kind and name."""
        return f"{self.findings[0].kind} {self.findings[0].name}".strip() if self.findings else ""


def diagnose(evidence: Evidence) -> Diagnosis:
    """Return what went wrong in a run.

    Args:
        evidence: What the log holds of it.
    """
    run = evidence.recording
    found = [
        *_unknown(evidence), *_questions(evidence), *_loops(evidence), *_denials(evidence), *_errors(evidence),
        *_stale(evidence), *_divergences(evidence),
    ]  # fmt: skip
    found.sort(key=lambda each: KINDS.index(each.kind))
    return Diagnosis(run.run, run.agent, run.outcome or "running", tuple(found), evidence.held)


def last_good(run: Recording, before: int) -> int:
    """Return the last good step before a step, never before one that wrote.

    Args:
        run: The run.
        before: The number of the first step that is not good.
    """
    kept = max((step.number for step in run.steps if step.outcome == "succeeded" and step.number < before), default=0)
    wrote = [step for step in run.steps if _wrote(run, step)]
    if not wrote:
        return kept
    last = wrote[-1]
    if last is run.steps[-1] and last.outcome != "succeeded":  # it is begun again, and its writes have the same keys
        return max(kept, last.number - 1)
    return max(kept, last.number)


def _wrote(run: Recording, step: Step) -> bool:
    return any(_writes(run, call) for attempt in step.attempts for call in attempt.calls)


def _writes(run: Recording, call: Call) -> bool:
    """Return whether a call changed something outside, or may have."""
    request = call.asked
    if request.kind == "run":
        child = run.children.get(child_of(call))
        return child is None or any(_wrote(child, step) for step in child.steps)
    return request.kind == "observe" or (request.kind == "tool" and request.effect != "read" and not is_denial(call))


def _unknown(evidence: Evidence) -> Iterable[RunFinding]:
    run = evidence.recording
    for key in evidence.unknown:
        text = f"it is not known whether the write {key} took place; settle it: refold effects settle {key}"
        yield RunFinding("unknown_effect", key, text, last_good(run, len(run.steps) + 1))


def _questions(evidence: Evidence) -> Iterable[RunFinding]:
    run = evidence.recording
    for question in evidence.questions:
        text = f"a call waits for a person: refold approve {question}, or refold deny {question}"
        yield RunFinding("question", question, text, last_good(run, len(run.steps) + 1))


def _loops(evidence: Evidence) -> Iterable[RunFinding]:
    run = evidence.recording
    finder = LoopFinder(evidence.loop.repeats, evidence.loop.period_max)
    for step, call in calls_of(run):
        if call.asked.kind == "tool" and not is_denial(call):
            finder.add(AnsweredCall(call.asked.hash, result_hash(call.answer, call.failure), step))
    circle = finder.ending
    if not circle.calls or (run.status == "ended" and run.outcome == "succeeded"):
        return
    numbers = [_number(each.step) for each in circle.calls]
    before = max(numbers[0], min(numbers[circle.period - 1] + 1, numbers[circle.period]))
    steps = tuple(dict.fromkeys(each.step for each in circle.calls))
    names = ", ".join(dict.fromkeys(_tool_name(run, each) for each in circle.calls[: circle.period]))
    denied = [each for each in evidence.denials if each.rule == "loop"]
    text = f"the calls of {names} gave the same results {len(circle.calls) // circle.period} times in a row"
    if denied:
        text += f"; the loop breaker of policy {denied[-1].policy} denied the next one in step {denied[-1].step}"
    ids = [each.observation for each in denied] + [evidence.observations.get(f"step/{each}", "") for each in steps]
    yield RunFinding("loop", names, text, last_good(run, before), steps, _ids(ids))


def _tool_name(run: Recording, answered: AnsweredCall) -> str:
    """Return the name of the tool of an answered call."""
    for step, call in calls_of(run):
        if step == answered.step and call.asked.hash == answered.request:
            return call.asked.name
    return ""


def _denials(evidence: Evidence) -> Iterable[RunFinding]:
    run = evidence.recording
    last = run.steps[-1].number if run.steps else 0
    for denial in evidence.denials:
        if denial.rule == "loop" or denial.step < last or run.outcome == "succeeded":
            continue
        is_budget = denial.rule.startswith("budget.")
        text = f"policy {denial.policy}, rule {denial.rule}: {denial.call} was denied: {denial.why}"
        yield RunFinding("budget" if is_budget else "denied", denial.rule.removeprefix("budget."), text,
                      last_good(run, denial.step), (f"{run.run}#{denial.step}",), (denial.observation,))  # fmt: skip


def _errors(evidence: Evidence) -> Iterable[RunFinding]:
    run = evidence.recording
    last = run.steps[-1] if run.steps else None
    entity = f"run/{run.run}"
    if run.status != "ended":
        step = f", in step {last.number} ({last.name})" if last is not None and not last.is_committed else ""
        at = last_good(run, len(run.steps) + 1)
        steps = () if not step or last is None else (f"{run.run}#{last.number}",)
        ids = [evidence.observations.get(f"step/{each}", "") for each in steps] + [
            evidence.observations.get(entity, "")
        ]
        why = "a live process has it" if evidence.held else "it runs, or its process is gone"
        yield RunFinding("unfinished", "", f"it did not end: {why}{step}", at, steps, _ids(ids))
        return
    if run.failure is None:
        return
    failed = [step for step in run.steps if step.outcome not in ("", "succeeded")]
    number = failed[-1].number if failed and failed[-1] is last else len(run.steps) + 1
    at = last_good(run, number)
    steps = (f"{run.run}#{number}",) if number <= len(run.steps) else ()
    ids = [evidence.observations.get(f"step/{each}", "") for each in steps] + [evidence.observations.get(entity, "")]
    where = f" in step {number} ({failed[-1].name})" if steps else " outside of a step"
    if run.failure.exception not in BY_POLICY:
        tool = run.failure.tool or _failed_tool(failed[-1]) if steps else run.failure.tool
        if tool:
            text = f"the tool {tool} failed with {run.failure.exception}{where}"
            yield RunFinding("tool", tool, text, at, steps, _ids(ids))
    yield RunFinding("error", run.failure.exception, f"it failed with {run.failure.exception}{where}", at, steps,
                  _ids(ids))  # fmt: skip


def _failed_tool(step: Step) -> str:
    """Return the tool whose failure is the step's; empty if there is none."""
    failure = step.failure
    for call in reversed(step.calls):
        if failure is not None and call.asked.kind == "tool" and call.failure is not None:
            return call.asked.name if call.failure.exception == failure.exception else ""
    return ""


def _stale(evidence: Evidence) -> Iterable[RunFinding]:
    run = evidence.recording
    for read in evidence.stale:
        step = f"{run.run}#{read.step}"
        fields = f" in {', '.join(read.fields)}" if read.fields else ""
        text = f"step {read.step} read {read.entity}, and the log has newer observations of it, which differ{fields}"
        ids = (evidence.observations.get(f"step/{step}", ""), *read.observations)
        yield RunFinding("stale_read", read.entity, text, last_good(run, read.step), (step,), _ids(ids))


def _divergences(evidence: Evidence) -> Iterable[RunFinding]:
    run = evidence.recording
    for each in evidence.divergences:
        number = len(run.steps) + 1 if each.step is None else each.step
        where = "at its end" if each.step is None else f"in step {number}" if number else "from the start"
        steps = (f"{run.run}#{number}",) if 0 < number <= len(run.steps) else ()
        text = f"it departs from the golden trace {each.golden} {where}: {each.what}"
        ids = [evidence.observations.get(f"step/{step}", "") for step in steps]
        yield RunFinding("divergence", each.golden, text, last_good(run, max(number, 1)), steps, _ids(ids))


def _ids(given: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for each in given if each))


def _number(step: str) -> int:
    return int(step.rpartition("#")[2])
