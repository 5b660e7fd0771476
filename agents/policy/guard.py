"""Enforce a policy in the recorder: a denied call is not made, and its denial is recorded as its answer.

1. Before the recorder makes a call, it requests an answer (recorder/answers.py). If there is a recorded answer, it is
   used; it was counted when the run was resumed.
2. Otherwise the policy decides. An allowed call is counted and made; it leaves only its own record.
3. The guard answers a denied call: a tool or a wrapped client raises PolicyDenied; an SDK's client gets an HTTP
   response with status 403, which no SDK retries. The recorder stores this as the call's answer, so a replay gets the
   same result without the policy.
4. A rule may ask a person. The question is an observation, and the call is answered by ApprovalNeeded, which ends the
   step and, if uncaught, the run: nothing waits in memory. When the run is resumed, its code reaches the call again,
   and the guard finds the answer in the log. An approved call is made. A rejected one is denied, and so is one whose
   question expired.
5. A denial is also an observation (agents/policy/decision_log.py). Denials and questions are written before the code
   gets its answer.
6. The sink reports to the guard how each call ended, because budgets and loops depend on it.

Nested runs use the same guard, so they share its budgets. A run that begins under a policy has the tag `policy:NAME`,
and cannot be resumed without a policy; it may be the same or another one.

If a process is killed after 5 and before the denial is recorded as the call's answer, the log has an observation of a
denial whose call is not in the run. The resumed code makes the call again, and the same decision is observed on the
same entity.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec

from refold.agents.capture.exchange import Response, is_exchange
from refold.agents.entry import class_name
from refold.agents.journal.record import Attempt, Call, Kind, Plain, RecordedRequest, Recording, Step
from refold.agents.policy.decision import ApprovalNeeded, PolicyDecision, PolicyDenied, decide
from refold.agents.policy.decision_log import Approval, DecisionLog, question_id
from refold.agents.policy.facts import RunFacts, title_of
from refold.agents.policy.rules import NO_BUDGET, Policy, RunBudget
from refold.agents.recorder.answers import Answers, CallSite, ChildAnswers, Departure
from refold.agents.recorder.failures import failure_of
from refold.agents.recorder.forwarding_sink import ForwardingSink
from refold.agents.recorder.plain import decoded
from refold.agents.recorder.run_sinks import RunSink
from refold.agents.recorder.step_assembler import PendingAttempt, PendingCall, PendingStep
from refold.agents.redaction.redactor import Redact

DENIED_STATUS = 403
DENIED_HEADER = "x-refold-denied"
DENIED_TYPE, APPROVAL_TYPE = "policy_denied", "approval_needed"
TAG = "policy:"


class Guard:
    """The policy and the facts of a run and of its nested runs. May be called from any thread."""

    def __init__(self, policy: Policy, started_at: int) -> None:
        """Create the guard of a run without calls.

        Args:
            started_at: When the run began, microseconds.
        """
        self.policy = policy
        self._facts = RunFacts(policy, started_at)
        self._lock = threading.Lock()

    def decide(self, request: RecordedRequest, step: str, *, is_approved: bool = False) -> PolicyDecision | None:
        """Decide on a call that is about to be made, and count it if it is allowed.

        Args:
            request: The call.
            step: Its step, as RUN#NUMBER.
            is_approved: Whether a person approved it, so that a rule that asks allows it.

        Returns:
            The denial or the question; None if the call is allowed.
        """
        with self._lock:
            decision = decide(self.policy, self._facts, request)
            if decision is not None and decision.action == "ask" and not is_approved:
                return decision
            if decision is not None and decision.action == "deny":
                self._facts.denied += 1
                return decision
            self._facts.begin(request, step)
            return None

    def ended(self, call: Call, step: str) -> None:
        """Count the end of an allowed call, or of a call on which policies do not decide."""
        with self._lock:
            self._facts.end(call, step)

    def count(self, recording: Recording) -> None:
        """Count the recorded calls of a run, and of its nested runs."""
        with self._lock:
            for step, call in calls_of(recording):
                count_recorded(self._facts, call, step)


Guarding: TypeAlias = Policy | str | Path
"""A policy, or the path of its file."""


def policy_of(guard: Guarding | None, budget: RunBudget = NO_BUDGET) -> Policy | None:
    """Return the given policy, or read it if a path is given.

    Args:
        guard: The policy; None if there is none.
        budget: A further budget. Without a policy it makes one, named `budget`.

    Raises:
        InputError: As `Policy.load`.
    """
    policy = guard if guard is None or isinstance(guard, Policy) else Policy.load(guard)
    return policy if budget == NO_BUDGET else (policy or Policy(name="budget")).within(budget)


def guard_of(policy: Policy, recording: Recording) -> Guard:
    """Return the guard of a run that continues from a recording; the recorded calls are counted.

    Args:
        policy: The policy.
        recording: The recorded part of the run, with its nested runs.
    """
    guard = Guard(policy, recording.started_at)
    guard.count(recording)
    return guard


def calls_of(recording: Recording) -> list[tuple[str, Call]]:
    """Return the calls of a run and of its nested runs, in the order in which they began, each with its RUN#NUMBER."""
    found = [
        (f"{run.run}#{step.number}", call)
        for run in recording.family for step in run.steps for attempt in step.attempts for call in attempt.calls
    ]  # fmt: skip
    return sorted(found, key=lambda each: each[1].started_at)


def count_recorded(facts: RunFacts, call: Call, step: str) -> None:
    """Count a recorded call.

    Args:
        step: Its step, as RUN#NUMBER.
    """
    if is_denial(call):
        facts.denied += 1
    else:
        facts.begin(call.asked, step)
        facts.end(call, step)


def is_denial(call: Call) -> bool:
    """Return whether a recorded call was not made because of a policy: it was denied, or a person was asked."""
    if call.failure is not None:
        return call.failure.exception in _NOT_MADE
    headers = call.answer.get("headers", ()) if is_exchange(call.asked.request) and call.answer else ()
    return any(name == DENIED_HEADER for name, _ in headers)


_NOT_MADE = frozenset({class_name(PolicyDenied), class_name(ApprovalNeeded)})


class GuardedAnswers:
    """The answers of a run under a guard: the recorded ones, and a denial for each call that the policy denies."""

    def __init__(
        self, answers: Answers, guard: Guard, run: str, now_micros: Callable[[], int],
        decisions: DecisionLog,
    ) -> None:  # fmt: skip
        self._answers = answers
        self._guard = guard
        self._run = run
        self._now_micros = now_micros
        self._decisions = decisions
        self._lock = threading.Lock()
        self._attempt = (0, 0)
        self._asked: Counter[str] = Counter()

    @property
    def makes_every_call(self) -> bool:
        """As Answers."""
        return self._answers.makes_every_call

    @property
    def departure(self) -> Departure | None:
        """As Answers."""
        return self._answers.departure

    def step(self, number: int, name: str) -> Step | None:
        """As Answers."""
        return self._answers.step(number, name)

    def call(self, site: CallSite, request: RecordedRequest) -> Call | None:
        """Return the recorded answer or a denial; None means that the call must be made."""
        found = self._answers.call(site, request)
        if found is not None:
            return found
        step = f"{self._run}#{site.step}"
        decision = self._guard.decide(request, step)
        if decision is None:
            return None
        now, title = self._now_micros(), title_of(request)
        if decision.action == "ask":
            question = question_id(self._run, site.step, request, self._nth(site, request))
            approval = self._decisions.approval(question)
            if approval is None:
                self._decisions.ask(decision, request, question, site.step, now)
            if approval is None or (approval.decision == "requested" and not _is_late(approval, decision, now)):
                needed = ApprovalNeeded(decision.policy, decision.rule, title, question, decision.why)
                return _denied_call(needed, request, now)
            if approval.decision == "approved" and not _is_late(approval, decision, approval.at):
                decision = self._guard.decide(request, step, is_approved=True)
                if decision is None:
                    return None
            else:
                decision = _refusal(decision, approval)
        self._decisions.deny(decision, request, site.step, now)
        return _denied_call(PolicyDenied(decision.policy, decision.rule, title, decision.why), request, now)

    def _nth(self, site: CallSite, request: RecordedRequest) -> int:
        """Return how often this attempt at the step has reached this call; each time needs its own approval."""
        attempt = site.step, site.attempt
        with self._lock:
            if self._attempt != attempt:
                self._attempt, self._asked = attempt, Counter()
            self._asked[request.hash] += 1
            return self._asked[request.hash]

    def begun(self, number: int) -> tuple[Attempt, ...]:
        """As Answers."""
        return self._answers.begun(number)

    def arguments(self, number: int, kind: Kind, name: str) -> Mapping[str, Plain]:
        """As Answers."""
        return self._answers.arguments(number, kind, name)

    def keys(self, site: CallSite) -> Collection[str]:
        """As Answers."""
        return self._answers.keys(site)

    def depart(self, departure: Departure) -> None:
        """As Answers."""
        self._answers.depart(departure)

    def within(self, site: CallSite, head: Recording, found: Call | None) -> ChildAnswers:
        """As Answers. The creator of the nested run puts it under the same guard."""
        return self._answers.within(site, head, found)


def _is_late(approval: Approval, decision: PolicyDecision, at: int) -> bool:
    return at - approval.asked_at > decision.expires_s * 1e6


def _refusal(decision: PolicyDecision, approval: Approval) -> PolicyDecision:
    """Return the denial of a call that a person rejected, or whose question expired."""
    why = f"nobody approved it within {decision.expires_s:g} s"
    if approval.decision == "rejected":
        why = f"rejected by {approval.by}" + (f": {approval.reason}" if approval.reason else "")
    return decision._replace(action="deny", why=why)


def _denied_call(error: PolicyDenied | ApprovalNeeded, request: RecordedRequest, now: int) -> Call:
    """Return the recorded call, with its answer, for a call that is not made."""
    if not is_exchange(request.request):
        tool = request.name if request.kind == "tool" else ""
        return Call(asked=request, failure=failure_of(error, now, tool=tool), started_at=now)
    kind = DENIED_TYPE if isinstance(error, PolicyDenied) else APPROVAL_TYPE
    answer = {"error": {"type": kind, "message": str(error), "policy": error.policy, "rule": error.rule}}
    headers = [("content-type", "application/json"), (DENIED_HEADER, error.policy)]
    response = Response((), "HTTP/1.1", DENIED_STATUS, headers, 0)
    response.add(msgspec.json.encode(answer), 0)
    return Call(asked=request, answer=response.answer(), started_at=now)


class GuardedSink(ForwardingSink):
    """A run's sink that also reports to the guard how calls ended. Calls of taken steps were counted at the resume."""

    def __init__(self, sink: RunSink, guard: Guard, run: str, redact: Redact) -> None:
        super().__init__(sink)
        self._guard = guard
        self._run = run
        self._redact = redact
        self._reported: set[int] = set()

    def call_ended(self, call: PendingCall) -> None:
        """As RunSink."""
        numbers = call.step_and_attempt
        if numbers is not None:
            self._report(call, numbers[0])
            self._reported.add(id(call))
        super().call_ended(call)

    def attempt_failed(self, number: int, attempt: PendingAttempt) -> None:
        """As RunSink."""
        self._report_attempt(attempt, number)
        super().attempt_failed(number, attempt)

    def step_ended(self, step: PendingStep) -> None:
        """As RunSink."""
        if step.attempts:
            self._report_attempt(step.attempts[-1], step.number)
        super().step_ended(step)

    def _report_attempt(self, attempt: PendingAttempt, number: int) -> None:
        for call in attempt.made:
            if id(call) not in self._reported:
                self._report(call, number)
        self._reported.clear()

    def _report(self, call: PendingCall, number: int) -> None:
        if call.source == "recorded":  # it was counted when the run was resumed, or it was denied
            return
        recorded = Call(
            asked=call.asked(self._redact), answer=self._redact(decoded(call.answer)), failure=call.failure,
            started_at=call.started_at, duration_ms=call.duration_ms,
        )  # fmt: skip
        self._guard.ended(recorded, f"{self._run}#{number}")
