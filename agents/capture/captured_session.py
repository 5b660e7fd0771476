"""One session that is captured: its exchanges become the steps of its run. See sessions.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from refold.agents.capture.exchange import is_of_messages
from refold.agents.capture.forks import ForkedTurn
from refold.agents.capture.proxy_guard import denial_in
from refold.agents.capture.spool import SpooledExchange
from refold.agents.capture.turns import (
    ModelReply,
    ModelTurn,
    ToolResult,
    answers_to,
    is_task_in,
    reply_of,
    results_of,
    turn_of,
)
from refold.agents.importers.messages import ToolCall, parsed
from refold.agents.importers.turn_keys import turn_key
from refold.agents.journal.delta import applied
from refold.agents.journal.record import Failure, Outcome, Plain, RecordedRequest, Recording, Step
from refold.agents.live import CapturedRun
from refold.agents.policy.decision_log import denial_entity, denial_patch
from refold.agents.recorder.plain import encoded
from refold.agents.recorder.step_assembler import PendingAttempt, PendingCall, PendingStep
from refold.agents.recordings.imported import ERROR, UNANSWERED, arguments_of
from refold.agents.recordings.load import BEGAN
from refold.agents.recordings.same_turns import SAME

TURN = "turn"


class CapturedSession:
    """One session's run.

    Attributes:
        reply: The answer to the last turn.
        ends_at: The hash of the last turn's messages.
        keys: The keys of its turns, in order.
        has_twin: Whether a turn of it may be a step of another run.
        begun_at: When the run began, in microseconds since 1970.
        spool: The name of the folder that its first exchange was in.
        size: The size of its last exchange, in bytes.
        stored: Its stored exchanges, by when they began, in microseconds since 1970.
    """

    def __init__(self, captured: CapturedRun, head: Recording, spool: str) -> None:
        self.run = captured.id
        self.sink = captured.sink
        self.begun_at = head.started_at
        self.spool = spool
        self.size = 0
        self.reply: ModelReply | None = None
        self.ends_at = ""
        self.stored: set[int] = set()
        self.keys: list[str] = []
        self.has_twin = False
        self._captured = captured
        self._agent = head.agent
        self._number = 0
        self._began: set[int] = set()
        self._messages = 0
        self._family: Any = ""
        self._state: dict[str, Any] = {}
        self._open: PendingAttempt | None = None
        self._is_unanswered = False
        self._last_at = self._taken_up_at = 0

    @property
    def number(self) -> int:
        """The number of the last step."""
        return self._number

    @property
    def is_waiting(self) -> bool:
        """Whether its last step waits for the results of tool calls."""
        return self._open is not None

    def call_for(self, texts: Sequence[str]) -> int | None:
        """Return the position of the open call that gave one of these texts to an agent as its task."""
        if self._open is None or self.reply is None:
            return None
        waiting = ((k, call) for k, call in enumerate(self.reply.calls, 1) if k not in self._began)
        return next((k for k, call in waiting if is_task_in(call, texts)), None)

    def began(self, position: int, run: str, at: int) -> None:
        """Note that a call of the open step began a nested run.

        Args:
            position: The call's position in the step, from 1.
            run: The id of the nested run.
            at: When it began, microseconds.
        """
        self._began.add(position)
        self._captured.link(f"action/{self.run}#{self._number}.{position}", BEGAN, f"run/{run}", self._number, at)

    def take(self, exchange: SpooledExchange, turn: ModelTurn | None, reply: ModelReply | None) -> None:
        """Record one exchange: its results for the open step's calls, and its own step.

        Args:
            exchange: The exchange.
            turn: Its turn; None if it is not a turn.
            reply: The model's reply; None if it has none.
        """
        if self._open is not None:
            new = [] if turn is None else turn.messages if turn.follows else turn.messages[self._messages :]
            results = [] if turn is None else results_of(turn.family, new)
            self._close(results, max(exchange.at, self._last_at))  # the agent's clock may be ahead of the proxy's
        self._number += 1
        self._note(exchange, turn, reply)
        ended_at = exchange.at + round(exchange.duration_ms * 1000)
        attempt = PendingAttempt(1, exchange.at, ended_at=ended_at)
        self.sink.step_begun(self._number, exchange.name if turn is None else TURN, 1, exchange.at)
        self._note_denial(exchange)
        call = self._model_call(exchange)
        self.size = len(call.request) + len(call.answer)
        attempt.made.append(call)
        self.sink.call_ended(call)
        self._open, self.reply, self._last_at = attempt, reply, ended_at
        self._began.clear()
        if turn is not None:
            self._family = turn.family
            before = self._state.get("messages", []) if turn.follows else []
            self._messages = len(turn.messages)
            self._state = {"messages": [*before, *turn.messages, *(() if reply is None else reply.messages)]}
        if reply is None or not reply.calls:
            attempt.failure = _failure_of(exchange)
            return self._end_step(None if attempt.failure is None else "failed")
        self.sink.await_written()  # the exchange is written before its actions, and durable with them
        self._ask(reply.calls, ended_at)

    def _note_denial(self, exchange: SpooledExchange) -> None:
        """Observe that a policy at the proxy denied the exchange, if it did. This is done before the exchange counts as
        stored, so that a process that is killed in between observes it again, on the same entity."""
        decision = denial_in(exchange.answer)
        if decision is not None:
            request = RecordedRequest(kind="model", name=exchange.name, request=exchange.request)
            step = f"{self.run}#{self._number}"
            patch = denial_patch(decision, request, step, exchange.at)
            self._captured.observe(denial_entity(step, request), patch, self._number, exchange.at)

    def _note(self, exchange: SpooledExchange, turn: ModelTurn | None, reply: ModelReply | None) -> None:
        """Note which turn the next step is, before the step."""
        step = f"{self.run}#{self._number}"
        if exchange.by:
            self.has_twin = True
            self._captured.link(f"step/{step}", SAME, f"step/{exchange.by}", self._number, exchange.at)
        if key := self._key_of(turn, reply):
            self._captured.observe(f"turn/{key}", {"captured": [step]}, self._number, exchange.at)

    def _key_of(self, turn: ModelTurn | None, reply: ModelReply | None) -> str:
        if turn is None or reply is None:
            return ""
        # Codex uses this API, and its transcripts do not have the replies' ids.
        reply_id = "" if turn.family == "responses" and self.keys else reply.id
        key = turn_key(reply_id, reply.calls, reply.text, "".join(self.keys[-1:]))
        if key:
            self.keys.append(key)
        return key

    def close(self) -> None:
        """End the step that is open, if one is: its calls have no results."""
        self._is_unanswered = self.is_waiting
        if self.is_waiting:
            self._close([], self._last_at)

    def end(self) -> None:
        """End the run, after `close`."""
        is_done = self.reply is not None and not self._is_unanswered
        output = self.reply.text if is_done and self.reply is not None else None
        # The resume is recorded with the current time, and the end comes after it.
        at = max(self._last_at, self._taken_up_at)
        self.sink.ended("succeeded" if is_done else "unknown", output or None, None, at)

    def taken_up(self, recording: Recording, now: int) -> tuple[ModelTurn, ModelReply | None] | None:
        """Continue a run of the log.

        Args:
            recording: The run so far.
            now: The time, microseconds since 1970.

        Returns:
            Its last turn with the reply, or None if it has no turn.
        """
        turn, reply = None, None
        self._state, self._taken_up_at, self.has_twin = recording.state, now, True
        self._apply_fork(recording, 0)
        for step in recording.steps:
            calls = [call for call in step.calls if call.asked.kind == "model"]
            self.stored |= {call.started_at for call in calls}
            self._number = step.number
            if calls:
                self._last_at = calls[-1].started_at + round(calls[-1].duration_ms * 1000)
                self.size = len(encoded([calls[-1].asked.request, calls[-1].answer], "an exchange"))
                turn = turn_of(calls[-1].asked.request)
                reply = None if turn is None else reply_of(turn.family, calls[-1].answer)
                self._key_of(turn, reply)
            if step.is_committed or step.outcome == "unknown":
                self._take_over(recording, step)
                continue
            self._reopen_step(step, turn, reply)
        if turn is None:
            return None
        self.reply, self._family, self._messages = reply, turn.family, len(turn.messages)
        return turn, reply

    def forked(self, recording: Recording, forked: ForkedTurn) -> None:
        """Begin as a fork.

        Args:
            recording: The fork's own head, with the parent's steps up to the fork.
            forked: The turn of the parent from which the conversation continues.
        """
        self._state = recording.state
        self._apply_fork(recording, 0)
        for step in recording.steps:
            self._number = step.number
            self._take_over(recording, step)
        self.reply = forked.reply
        if forked.turn is not None:
            self._family, self._messages = forked.turn.family, len(forked.turn.messages)

    def _take_over(self, recording: Recording, step: Step) -> None:
        """Add a recorded step, and the changes of a fork after it."""
        self._state = applied(self._state, step.delta)
        self.sink.step_reused(step, self._state)
        self._apply_fork(recording, step.number)

    def _apply_fork(self, recording: Recording, number: int) -> None:
        for fork in recording.parted:
            if fork.at == number:
                self._state = applied(self._state, fork.changes)
                self.sink.forked(fork.patch, self._state)

    def _reopen_step(self, step: Step, turn: ModelTurn | None, reply: ModelReply | None) -> None:
        began = step.attempts[-1].started_at or self._last_at
        attempt = PendingAttempt(1, began, ended_at=self._last_at)
        for call in step.calls:
            pending = PendingCall(
                call.asked.kind, call.asked.name, encoded(call.asked.request, "a request"),
                answer=encoded(call.answer, "an answer"), failure=call.failure, started_at=call.started_at,
                duration_ms=call.duration_ms, is_open=False,
            )  # fmt: skip
            attempt.made.append(pending)
        self._open = attempt
        self.sink.step_begun(step.number, step.name, 1, began)
        if turn is not None:
            self._state = {"messages": [*turn.messages, *(() if reply is None else reply.messages)]}

    def _model_call(self, exchange: SpooledExchange) -> PendingCall:
        failed = exchange.failure
        return PendingCall(
            "model", exchange.name, encoded(exchange.request, "a request"),
            answer=encoded(exchange.answer, "an answer"),
            failure=None if failed is None else Failure(exception=failed.name, message=failed.message),
            started_at=exchange.at, duration_ms=exchange.duration_ms, is_open=False, step_and_attempt=(self._number, 1),
            order=(1,),
        )  # fmt: skip

    def _ask(self, calls: Sequence[ToolCall], at: int) -> None:
        for k, call in enumerate(calls, 1):
            self._action(k, call, {"status": "pending", "started_at": at}, at, inputs=call.inputs)

    def _close(self, results: Sequence[ToolResult], at: int) -> None:
        """End the open step, with the results of its calls."""
        assert self._open is not None
        calls = () if self.reply is None else self.reply.calls
        answers = answers_to(calls, results)
        for k, (call, found) in enumerate(zip(calls, answers, strict=True), 1):
            self._open.made.append(self._tool_call(call, found, at))
            patch: dict[str, Any] = {"status": "unknown"}
            if found is not None:
                patch = {"status": "failed" if found.failed else "succeeded", "ended_at": at}
            self._action(k, call, patch, at, output=None if found is None else found.output)
        self._open.ended_at = at
        self._end_step("unknown" if None in answers and not results else None)

    def _tool_call(self, call: ToolCall, found: ToolResult | None, at: int) -> PendingCall:
        inputs = call.inputs
        request = encoded(arguments_of(inputs), "arguments")
        failure = None
        if found is None:
            failure = Failure(exception=UNANSWERED, message="no result is recorded", tool=call.tool, input=inputs)
        elif found.failed:
            failure = Failure(exception=ERROR, message=found.output or "", at=at, tool=call.tool, input=inputs)
        return PendingCall(
            "tool", call.tool, request, failure=failure, started_at=self._last_at, is_open=False,
            answer=encoded(None if found is None else found.output, "a result"),
        )  # fmt: skip

    def _end_step(self, outcome: Outcome | None) -> None:
        attempt, self._open = self._open, None
        assert attempt is not None
        result = None if self.reply is None else self.reply.text or None
        name = attempt.made[0].name if not self._family else TURN
        self.sink.step_ended(
            PendingStep(
                self._number,
                name,
                [attempt],
                encoded(self._state, "the conversation"),
                encoded(result, "a reply"),
                outcome or "succeeded",
            )
        )
        calls = () if self.reply is None else self.reply.calls
        if calls:
            step = f"{self.run}#{self._number}"
            listed = [
                {"position": k, "tool": call.tool, "action": f"{step}.{k}", "call_id": call.call_id or None}
                for k, call in enumerate(calls, 1)
            ]
            self._captured.observe(f"step/{step}", {"calls": listed}, self._number, attempt.ended_at)

    def _action(self, k: int, call: ToolCall, patch: dict[str, Any], at: int, **payloads: Any) -> None:
        step = f"{self.run}#{self._number}"
        entity = f"action/{step}.{k}"
        patch |= {"tool": call.tool, "agent": self._agent, "run": self.run, "step": step, "position": k}
        patch |= {"call_id": call.call_id} if call.call_id else {}
        given = {name: value for name, value in payloads.items() if value is not None}
        self._captured.observe(entity, patch, self._number, at, payloads=given)
        if patch["status"] == "pending":
            self._captured.link(entity, "of", f"step/{step}", self._number, at)


def last_turn(recording: Recording) -> tuple[ModelTurn, ModelReply | None] | None:
    """Return the last turn of a run with the reply; None if it has none."""
    calls = [call for step in recording.steps[-1:] for call in step.calls if call.asked.kind == "model"]
    turn = turn_of(calls[-1].asked.request) if calls else None
    return None if turn is None else (turn, reply_of(turn.family, calls[-1].answer))


def _failure_of(exchange: SpooledExchange) -> Failure | None:
    """Return the failure of a turn: no response, a status that is an error, or a connection that broke."""
    if exchange.failure is not None:
        return Failure(exception=exchange.failure.name, message=exchange.failure.message)
    status, end = exchange.answer["status"], exchange.answer["end"]
    if status >= 400:
        return Failure(exception=f"HTTP {status}", message=f"{exchange.name} was answered with status {status}")
    if end == "whole":
        return _event_failure(exchange.answer)
    error = exchange.answer.get("error") or {"class": "AgentLeft", "message": "the agent read no further"}
    return Failure(exception=error["class"], message=error["message"])


def _event_failure(answer: Plain) -> Failure | None:
    """Return the failure in an event of a WebSocket that reports what elsewhere an error's status reports."""
    if not is_of_messages(answer) or not answer["chunks"] or not isinstance(answer["chunks"][-1][1], str):
        return None
    event = parsed(answer["chunks"][-1][1])
    if not isinstance(event, dict) or event.get("type") != "error":
        return None
    error = event.get("error")
    message = error.get("message") if isinstance(error, dict) else None
    return Failure(exception=f"HTTP {event.get('status', 'error')}", message=str(message or "the response is an error"))
