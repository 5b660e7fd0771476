"""The records that a guard writes into the log and reads: denials, and questions to a person with their answers.

A denial is `audit_event/<run>#<step>.<hash>`; the hash is the first digits of the request's hash.

A question is `action/<run>#<step>.<hash>.<n>`: the n-th time that the step makes this call, so one answer allows one
call. Its field `approval` changes from `requested` to `approved` or `rejected`. For the person who answers, it holds
the call's arguments, redacted and sealed like all content of a run. A resumed run finds the answer by the same id.

The cause of each of these records is the last record of the run before it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from refold.agents.journal.record import Plain, RecordedRequest, Recording
from refold.agents.policy.decision import PolicyDecision
from refold.agents.policy.facts import arguments_of, title_of
from refold.agents.recorder.observations import Seal
from refold.agents.recorder.run_sinks import LogSink
from refold.avro.errors import Expired, InputError, NotAnswerable, UnknownEntity
from refold.avro.observation import Source
from refold.streams.client import Log
from refold.streams.entity_index import facts
from refold.streams.view import EntityView

_DIGITS = 12
_KIND = "action/"
_LONGEST = 1e17
"""The longest wait of a question that is recorded, microseconds: 3,000 years."""
HEAL_QUESTION = "heal"
"""The subject of a question about healing a run, in place of a tool; its id is `<run>#<step>.heal.<n>`."""


class Approval(NamedTuple):
    """The state of a question.

    Attributes:
        decision: "requested", "approved" or "rejected".
        by: Who decided.
        at: When it came to this state, in microseconds since 1970; 0 if that is not recorded.
        asked_at: When it was asked, in microseconds since 1970; 0 if that is not recorded.
        expires_at: Until when it can be answered, in microseconds since 1970; 0 if that is not recorded.
    """

    decision: str
    by: str
    at: int
    reason: str
    asked_at: int
    expires_at: int = 0


class ApprovalQuestion(NamedTuple):
    """A question as people see it.

    Attributes:
        id: The argument of `refold approve`.
        arguments: The call's arguments; None if they cannot be decrypted.
    """

    id: str
    run: str
    step: str
    tool: str
    arguments: Plain
    approval: Approval


class DecisionLog:
    """The decisions of one run's guard, in its log."""

    def __init__(self, log: Log, head: Recording, sink: LogSink, seq: Iterator[int], seal: Seal) -> None:
        """Connect a guard to its log.

        Args:
            log: The log.
            head: The head of the run.
            sink: The run's sink.
            seq: Numbers the observations of the run.
            seal: Seals payloads of the run.
        """
        self._log = log
        self._head = head
        self._sink = sink
        self._seq = seq
        self._seal = seal

    def deny(self, decision: PolicyDecision, request: RecordedRequest, number: int, now: int) -> None:
        """Observe a denial. It holds none of the call's arguments.

        Args:
            decision: The denial.
            request: The call.
            number: The number of the step.
            now: The time, microseconds.
        """
        step = f"{self._head.run}#{number}"
        patch = denial_patch(decision, request, step, now)
        self._observe(denial_entity(step, request), patch, number)

    def ask(self, decision: PolicyDecision, request: RecordedRequest, question: str, number: int, now: int) -> None:
        """Observe a question to a person.

        Args:
            decision: The decision to ask.
            request: The call.
            question: The question's id, from `question_id`.
            number: The number of the step.
            now: The time, microseconds.
        """
        entity = _KIND + question
        patch = {
            "tool": request.name, "agent": self._head.agent, "run": self._head.run,
            "step": f"{self._head.run}#{number}",
            "inputs": self._seal(entity, "inputs", arguments_of(request)), "status": "awaiting_approval",
            "approval": {"decision": "requested", "by": _authority(decision), "at": now, "reason": decision.why},
            "started_at": now, "expires_at": now + int(min(decision.expires_s * 1e6, _LONGEST)),
        }  # fmt: skip
        if request.effect:
            patch["effect"] = request.effect
        self._observe(entity, patch, number)

    def approval(self, question: str) -> Approval | None:
        """Return the state of a question; None if it has not been asked yet."""
        return approval_of(self._log, question)

    def _observe(self, entity: str, patch: Mapping[str, Any], number: int) -> None:
        self._sink.await_written()
        source = Source(self._head.agent, self._head.run, str(number), "", next(self._seq))
        self._log.observe(entity, patch, source=source, causes=(self._sink.last,))


def denial_entity(step: str, request: RecordedRequest) -> str:
    """Return the entity of the denial of a call.

    Args:
        step: The call's step, as RUN#NUMBER.
    """
    return f"audit_event/{step}.{request.hash[:_DIGITS]}"


def denial_patch(decision: PolicyDecision, request: RecordedRequest, step: str, now: int) -> dict[str, Any]:
    """Return the observation of a denial. It holds none of the call's arguments.

    Args:
        decision: The denial.
        request: The call.
        step: The call's step, as RUN#NUMBER.
        now: The time, microseconds.
    """
    details = {
        "policy": decision.policy, "rule": decision.rule, "call": title_of(request), "request_hash": request.hash,
        "evidence": list(decision.evidence),
    }  # fmt: skip
    return {
        "actor": decision.policy, "actor_kind": "service", "verb": "deny", "object": f"step/{step}",
        "reason": decision.why, "authority": _authority(decision), "outcome": "denied",
        "run": step.rpartition("#")[0], "step": step, "details": details, "occurred_at": now,
    }  # fmt: skip


def question_id(run: str, number: int, request: RecordedRequest, nth: int) -> str:
    """Return the id of a question about the n-th call of this kind in a step, n from 1."""
    return f"{run}#{number}.{request.hash[:_DIGITS]}.{nth}"


def approval_of(log: Log, question: str) -> Approval | None:
    """Return the state of a question; None if it has not been asked yet."""
    try:
        return _approval(log.state(_KIND + question).fields)
    except UnknownEntity:
        return None


def ask_person(
    log: Log, question: str, about: str, run: str, agent: str, by: str, reason: str, now: int, causes: Iterable[str],
    inputs: Any = None,
) -> str:  # fmt: skip
    """Ask a person something about a run, without its guard. The question is answered as those of guards are.

    Args:
        log: The log.
        question: The question's id.
        about: What is asked about, in place of a tool's name.
        run: The run's id.
        agent: Its agent.
        by: Who asks.
        reason: Why, in words.
        now: The time, microseconds.
        causes: The observations that it rests on.
        inputs: The arguments of the call that it is about, sealed; None if it is about no call.

    Returns:
        The id of the observation.
    """
    patch: dict[str, Any] = {
        "tool": about, "agent": agent, "run": run, "status": "awaiting_approval", "started_at": now,
        "approval": {"decision": "requested", "by": by, "at": now, "reason": reason},
    }  # fmt: skip
    if inputs is not None:
        patch["inputs"] = inputs
    return log.observe(_KIND + question, patch, causes=causes)


def questions(log: Log, opened: Callable[[str, str, Any], Plain], *, all_too: bool = False) -> list[ApprovalQuestion]:
    """Return the open questions, oldest first.

    Args:
        log: The log.
        opened: Decrypts the value of a field of an entity (agents/vault.py).
        all_too: Whether to return answered questions too.
    """
    asked = facts(log, "action", approval_in, log.point().cut)
    names = [name for name, each in asked.items() if all_too or each.decision == "requested"]
    found = []
    for entity, view in log.states(names).items():
        fields = view.fields
        approval = _approval(fields)
        if approval is None:
            continue
        arguments = None
        with contextlib.suppress(Expired, NotAnswerable):
            arguments = opened(entity, "inputs", fields.get("inputs"))
        run, step, tool = (fields.get(name, "") for name in ("run", "step", "tool"))
        found.append(ApprovalQuestion(entity.removeprefix(_KIND), run, step, tool, arguments, approval))
    return sorted(found, key=lambda each: each.approval.asked_at)


def answer(log: Log, question: str, now: int, *, is_approved: bool, by: str, reason: str) -> None:
    """Answer a question. A question can be answered only once.

    Args:
        log: The log.
        question: The question's id.
        now: The time, microseconds.
        is_approved: Whether the call is approved.
        by: Who answers.
        reason: Why; may be empty.

    Raises:
        InputError: There is no such question, or it already has an answer.
    """
    try:
        approval = _approval(log.state(_KIND + question).fields)
    except UnknownEntity:
        approval = None
    if approval is None:
        raise InputError(f"there is no question {question}: `refold approvals` lists the open ones")
    if approval.decision != "requested":
        raise InputError(f"{question} was {approval.decision} by {approval.by}: a question can be answered only once")
    decision = {"decision": "approved" if is_approved else "rejected", "by": by, "at": now}
    if reason:
        decision["reason"] = reason
    log.observe(_KIND + question, {"approval": decision, "status": "pending" if is_approved else "rejected"})


def _authority(decision: PolicyDecision) -> str:
    return f"policy {decision.policy}, rule {decision.rule}"


def approval_in(view: EntityView) -> Approval | None:
    """Return the approval of an action, without the reason, which is content; None if nobody was asked."""
    found = _approval(view.fields)
    return None if found is None else found._replace(reason="")


def _approval(fields: Mapping[str, Any]) -> Approval | None:
    found = fields.get("approval")
    if not isinstance(found, Mapping):
        return None
    reason = found.get("reason")
    return Approval(
        found["decision"], found.get("by") or "", found.get("at") or 0, reason if isinstance(reason, str) else "",
        fields.get("started_at") or 0, fields.get("expires_at") or 0,
    )  # fmt: skip
