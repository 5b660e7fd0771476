"""The raw data that a step collects while it runs. It becomes records later, outside of the agent's time.

Values are stored as JSON, encoded when they were requested and answered, so a later change by the agent has no effect
on them. `StepAssembler` turns the collected values into Steps: redacted, with the edits of the state and the chain of
hashes. It needs the steps in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from refold.agents.capture.exchange import is_exchange, texts_of, with_texts
from refold.agents.journal.chain import fork_hash, state_hash, step_hash
from refold.agents.journal.delta import edits, following
from refold.agents.journal.record import (
    Attempt,
    Call,
    Edit,
    Effect,
    Failure,
    Kind,
    Outcome,
    Plain,
    RecordedRequest,
    Retry,
    Step,
)
from refold.agents.recorder.context import ExecutionBranch, Order
from refold.agents.recorder.plain import decoded, encoded
from refold.agents.recorder.streamed_answers import stream_pieces, with_stream_pieces
from refold.agents.redaction.redactor import Redact, as_of_run, is_redacting
from refold.agents.redaction.streams import pieces_redacted

NULL = b"null"


@dataclass(slots=True)
class PendingCall:
    """One call, raw.

    Attributes:
        request, answer: The request and the answer, as JSON.
        started_at: When the call began, in microseconds since 1970.
        began_s: When the call began by a monotonic clock, in seconds.
        is_open: Whether it has neither answer nor failure yet.
        order: Its position among the calls of its attempt.
        ignored, found_by: As in RecordedRequest; found_by is JSON.
        so_far: The pieces until now, if its answer arrives in pieces.
        step_and_attempt: The numbers of its step and attempt; None if the call is not made durable before its step.
        branch: The name of its branch.
        as_recorded: The call in the form that is recorded, redacted; None before `StepAssembler.call` made it.
    """

    kind: Kind
    name: str
    request: bytes
    effect: Effect = ""
    answer: bytes = NULL
    failure: Failure | None = None
    retries: list[Retry] = field(default_factory=list)
    key: str = ""
    started_at: int = 0
    duration_ms: float = 0
    source: Literal["live", "recorded"] = "live"
    began_s: float = 0
    is_open: bool = True
    order: Order = ()
    so_far: Callable[[], Plain] | None = None
    step_and_attempt: tuple[int, int] | None = None
    as_recorded: Call | None = None
    ignored: tuple[str, ...] = ()
    found_by: bytes = NULL
    branch: str = ""

    def asked(self, redact: Redact) -> RecordedRequest:
        """Return the request as it is recorded."""
        return self.asked_as(redact(decoded(self.request)), redact)

    def asked_as(self, request: Plain, redact: Redact) -> RecordedRequest:
        """Return the request as it is recorded, if its content is already redacted."""
        found_by = None if self.found_by == NULL else redact(decoded(self.found_by))
        return RecordedRequest(
            kind=self.kind, name=self.name, request=request, effect=self.effect, ignored=self.ignored, found_by=found_by
        )


@dataclass(slots=True)
class PendingAttempt:
    """One attempt at a step, raw.

    Attributes:
        is_closed: Whether it accepts no more calls.
        opened_in: The ids of the thread and of the task that began it.
    """

    number: int
    started_at: int
    made: list[PendingCall] = field(default_factory=list)
    failure: Failure | None = None
    backoff_ms: int = 0
    ended_at: int = 0
    is_closed: bool = False
    opened_in: tuple[int, int] = (0, 0)
    branch: ExecutionBranch = field(default_factory=ExecutionBranch)


@dataclass(slots=True)
class PendingStep:
    """One step, raw, at its end.

    Attributes:
        state: The JSON of the run's state after it.
        earlier: The recorded attempts.
    """

    number: int
    name: str
    attempts: list[PendingAttempt]
    state: bytes
    result: bytes
    outcome: Outcome
    earlier: tuple[Attempt, ...] = ()


class StepAssembler:
    """Turns steps into records, in order.

    Args:
        state: The run's state so far, redacted as it is recorded.
        known: In a replay without redaction, the recorded steps: an equal state need not be computed again.
        life: How often the run was begun, including this time.

    Attributes:
        previous: The chain of hashes so far.
    """

    def __init__(self, redact: Redact, previous: str, state: Plain, known: Iterable[Step] = (), life: int = 1) -> None:
        self._life = life
        self._redact = as_of_run(redact)
        self._is_redacting = is_redacting(redact)
        self.previous = previous
        self._state = state
        self._state_hash = state_hash(state)
        self._known = {(step.number, step.state_before): step for step in known}

    def attempt(self, attempt: PendingAttempt) -> Attempt:
        """Return an attempt; also one that failed, while its step continues."""
        return Attempt(
            number=attempt.number, life=self._life, calls=tuple(map(self.call, attempt.made)),
            failure=self._failure(attempt.failure), backoff_ms=attempt.backoff_ms, started_at=attempt.started_at,
            ended_at=attempt.ended_at,
        )  # fmt: skip

    def step(self, pending: PendingStep) -> Step:
        """Return a step that ended, with its position in the chain."""
        # The calls come first: then secrets in their answers are known when the state that contains them is redacted.
        attempts = (*pending.earlier, *map(self.attempt, pending.attempts))
        before = self._state_hash
        changes = self._state_became(pending)
        step = Step(
            number=pending.number, name=pending.name, attempts=attempts, delta=changes,
            result=self._redact(decoded(pending.result)), outcome=pending.outcome, state_before=before,
            state_after=self._state_hash, previous=self.previous,
        )  # fmt: skip
        self.previous = step_hash(self.previous, step)
        return msgspec.structs.replace(step, hash=self.previous)

    def _state_became(self, step: PendingStep) -> tuple[Edit, ...]:
        known = self._known.get((step.number, self._state_hash))
        if known is not None:
            after = following(self._state, known.delta)
            if encoded(after, "the state") == step.state:
                self._state, self._state_hash = after, known.state_after
                return known.delta
        after = self._redact(decoded(step.state))
        changes = edits(self._state, after)
        self._state = after
        self._state_hash = state_hash(after) if changes else self._state_hash
        return changes

    def reuse(self, step: Step, state: Plain) -> None:
        """Continue from a recorded step."""
        self.previous = step.hash
        self._state = state
        self._state_hash = step.state_after

    def forked(self, patch: Plain, state: Plain) -> None:
        """Continue as a fork: with another state, from another position in the chain."""
        self.previous = fork_hash(self.previous, patch)
        self._state = state
        self._state_hash = state_hash(state)

    def failure(self, failure: Failure | None) -> Failure | None:
        """Return a failure as it is recorded."""
        return self._failure(failure)

    def call(self, call: PendingCall) -> Call:
        """Return a call that has ended, as it is recorded."""
        if call.as_recorded is None:
            call.as_recorded = self._call(call)
        return call.as_recorded

    def _call(self, call: PendingCall) -> Call:
        failures = [_parts(each.failure) for each in call.retries]
        failed = None if call.failure is None else _parts(call.failure)
        asked, answered = decoded(call.request), decoded(call.answer)
        if self._is_redacting:
            answered = self._redact_streamed(asked, answered, [failed, failures])
        request, outcome = self._redact.exchange(asked, [answered, failed, failures])
        answer, failed, failures = outcome
        retries = tuple(msgspec.structs.replace(each, failure=_with_texts(each.failure, parts))
                        for each, parts in zip(call.retries, failures, strict=True))  # fmt: skip
        return Call(
            asked=call.asked_as(request, self._redact), answer=answer,
            failure=None if call.failure is None else _with_texts(call.failure, failed), retries=retries, key=call.key,
            started_at=call.started_at, duration_ms=call.duration_ms, source=call.source,
            branch=call.branch,
        )  # fmt: skip

    def _redact_streamed(self, request: Plain, answer: Plain, others: Plain) -> Plain:
        """Return an answer without the secrets that span several of its pieces."""
        redact = self._redact.for_answers_to(request)

        def texts_redacted(texts: list[str]) -> list[str]:
            given = {"texts": dict(zip(map(str, range(len(texts))), texts, strict=True)), "others": [answer, others]}
            return [*redact(given)["texts"].values()]

        texts = texts_of(answer) if is_exchange(request) and isinstance(answer, dict) else []
        if len(texts) > 1:
            found = pieces_redacted(texts, texts_redacted)
            return answer if found == texts else with_texts(answer, found)
        pieces = stream_pieces(answer)
        found = pieces_redacted(pieces, texts_redacted)
        return answer if found == pieces else with_stream_pieces(answer, found)

    def _failure(self, failure: Failure | None) -> Failure | None:
        return None if failure is None else _with_texts(failure, self._redact(_parts(failure)))


def _parts(failure: Failure) -> list[Plain]:
    """Return the parts of a failure that may hold any text."""
    return [failure.message, failure.traceback, failure.input, failure.output, failure.details]


def _with_texts(failure: Failure, parts: list[Plain]) -> Failure:
    message, trace, given, output, details = parts
    return msgspec.structs.replace(
        failure, message=message, traceback=trace, input=given, output=output, details=details
    )
