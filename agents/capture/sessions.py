"""Exchanges become runs: a session is recognised by its conversation, and each turn is a step of its run.

    run       agent NAME, kind `capture`; its metadata says in `capture` what was set, and which spool it used
    step n    the n-th turn: the exchange as a call of the model; then each tool call in the model's reply, answered
              with the result in the next turn. Its state is {"messages": [...]}: the conversation after it
    action    each tool call also as `action/RUN#n.k`: its request and its result

1. A turn belongs to the session whose last request is a prefix of it, if the next message is the recorded reply. A
   request that equals the last one is a retry of it if that had no reply. Any other request begins a session.
2. A turn that calls tools leaves its step open: the exchange is durable in it. The results in the next turn are linked
   to its calls by their ids, and the step ends. A turn without calls, or without a reply, ends at once.
3. A session that begins while a call of another session waits, with a text of that call's arguments as its task,
   belongs to a sub-agent: it is a nested run in that step. The call's action is linked to it.
4. Exchanges that are not turns (embeddings, lists of models, unknown paths) are the steps of a separate run.
5. A run ends with its proxy, or with the program that was run: `succeeded` if its last turn has a reply without tool
   calls, else `unknown`.

Crash points. An exchange is identified by the time of its beginning, which no two in a spool share. An exchange that
was stored, and whose file was not removed, is recognised by it and skipped. So is a run that was begun and has no step:
it begins with its first exchange. A run whose process was killed continues from the log: with its open step, the calls
in it, and its conversation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from refold.agents.capture.exchange import is_of_messages
from refold.agents.capture.forks import ForkedTurn, Parents
from refold.agents.capture.proxy_guard import denial_in
from refold.agents.capture.spool import MissedExchanges, SpooledExchange
from refold.agents.capture.turns import (
    ModelReply,
    ModelTurn,
    ToolResult,
    answers_to,
    asked_first,
    is_answered_by,
    is_of_the_model,
    is_task_in,
    reply_of,
    results_of,
    title_of,
    turn_of,
)
from refold.agents.importers.messages import ToolCall, parsed
from refold.agents.journal.delta import applied
from refold.agents.journal.record import Failure, Outcome, Plain, RecordedRequest, Recording, Step
from refold.agents.journal.self_replay import state_at
from refold.agents.live import CapturedRun, CaptureRecorder
from refold.agents.log import AgentLog
from refold.agents.policy.decision_log import denial_entity, denial_patch
from refold.agents.recorder.plain import encoded
from refold.agents.recorder.step_assembler import PendingAttempt, PendingCall, PendingStep
from refold.agents.recordings.imported import ERROR, UNANSWERED, arguments_of
from refold.agents.recordings.load import BEGAN, CAPTURED
from refold.agents.replay.patch import patch_of

TURN = "turn"
GAP = "refold.CaptureGap"
_LOOSE = "calls that are no turn of a conversation"


class Sessions:
    """The sessions of one open log. kind: the kind of their runs."""

    kind = CAPTURED

    def __init__(
        self,
        log: AgentLog,
        capturing: CaptureRecorder,
        agent: str,
        spools: Sequence[str],
        settings: Plain,
        *,
        is_redacting: bool = False,
        parents: Sequence[Recording] = (),
    ) -> None:
        """Resume the open runs.

        Args:
            log: The log.
            capturing: Begins runs in it.
            agent: The name of the agent.
            spools: Names of the folders that are read here; runs that used them are resumed.
            settings: Recorded as the way in which the agent was pointed here.
            is_redacting: Whether the runs are redacted.
            parents: Recordings that conversations may be forks of, the main one first.
        """
        self._log = log
        self._capturing = capturing
        self._agent = agent
        self._settings = settings
        self._is_redacting = is_redacting
        self._live: list[CapturedSession] = []
        self._by_end: dict[str, list[CapturedSession]] = {}
        self._by_response: dict[str, CapturedSession] = {}
        self._loose: CapturedSession | None = None
        self._stored: set[int] = set()
        self._begun: dict[int, CapturedSession] = {}
        self._parents = Parents(parents)
        self._recover(frozenset(spools))

    def store(self, exchange: SpooledExchange, spool: str) -> None:
        """Store one exchange; durable on return."""
        if exchange.at in self._stored:
            return
        turn = turn_of(exchange.request)
        reply = None if turn is None or exchange.failure is not None else reply_of(turn.family, exchange.answer)
        session = self._session(turn, exchange, spool)
        session.take(exchange, turn, reply)
        if turn is not None:
            self._index(session, turn, reply)
        session.sink.flush()

    def say_missed(self, missed: MissedExchanges, spool: str) -> None:
        """Record exchanges that were not kept, as a run that failed; durable on return."""
        if self._log.states([f"run/{missed.id}"]):
            return
        sink = self._capturing.begin(self._head("exchanges that were not kept", missed.first_at, spool, missed.id)).sink
        said = f"{missed.count} exchanges were not kept: {missed.why}"
        sink.ended("failed", None, Failure(exception=GAP, message=said, at=missed.last_at), missed.last_at)

    def end(self) -> list[str]:
        """End every run; return their ids, the first begun first."""
        ended = [*self._live, *([] if self._loose is None else [self._loose])]
        for session in ended:
            session.end()
        self._live, self._loose, self._by_end, self._by_response = [], None, {}, {}
        return [each.run for each in ended]

    def _session(self, turn: ModelTurn | None, exchange: SpooledExchange, spool: str) -> CapturedSession:
        if turn is None:
            if self._loose is None:
                self._loose = self._begin(_LOOSE, None, exchange, spool)
            return self._loose
        found = self._found(turn)
        if found is None:
            self._live.append(found := self._begin(title_of(turn.family, turn.messages), turn, exchange, spool))
        return found

    def _found(self, turn: ModelTurn) -> CapturedSession | None:
        if turn.follows:
            return self._by_response.get(turn.follows)
        for length in range(len(turn.chain), 0, -1):
            rest = turn.messages[length:]
            for session in reversed(self._by_end.get(turn.chain[length - 1], ())):
                if not rest:
                    if session.reply is None:
                        return session
                elif is_of_the_model(rest[0]) and (session.reply is None or is_answered_by(turn, rest, session.reply)):
                    return session
        return None

    def _begin(self, title: str, turn: ModelTurn | None, exchange: SpooledExchange, spool: str) -> CapturedSession:
        if (begun := self._begun.pop(exchange.at, None)) is not None:
            return begun
        head = self._head(title, exchange.at, spool, self._capturing.runtime.new_id())
        if turn is not None and (forked := self._parents.of(turn)) is not None:
            return self._fork(forked, head, turn)
        if turn is not None:
            head = replace(head, input={"messages": turn.messages}, state={"messages": []})
            texts = asked_first(turn.family, turn.messages)
            for session in reversed(self._live):
                if (position := session.call_for(texts)) is not None:
                    head = replace(head, caller=session.run, caller_step=session.number)
                    begun = CapturedSession(self._capturing.begin(head), self._agent)
                    session.began(position, begun.run, exchange.at)
                    return begun
        return CapturedSession(self._capturing.begin(head), self._agent)

    def _fork(self, forked: ForkedTurn, head: Recording, turn: ModelTurn) -> CapturedSession:
        """Return a run that continues from a recorded turn."""
        parent = forked.parent
        # Before its first turn it diverges by its input.
        given: Any = {} if forked.step else {"input": {"messages": turn.messages}}
        patch = self._capturing.redactor()(patch_of(state_at(parent, forked.step), **given).tree)
        head = replace(
            parent, run=head.run, kind=CAPTURED, title=head.title, metadata=head.metadata, started_at=head.started_at,
            redacted=head.redacted, parent=parent.run, forked_at=forked.step, patch=patch,
            forks=tuple(each for each in parent.parted if each.at <= forked.step), steps=(), status="running",
            outcome="", output=None, failure=None, ended_at=0, hash="", flagged=False, pinned=False, retention_class="",
            caller="", caller_step=0, children={}, tags=(), task="",
        )  # fmt: skip
        session = CapturedSession(self._capturing.begin(head), parent.agent)
        session.forked(replace(head, steps=parent.steps[: forked.step]), forked)
        return session

    def _head(self, title: str, at: int, spool: str, run: str) -> Recording:
        settings = {"capture": {**self._settings, "spool": spool}}
        return Recording(
            run=run, agent=self._agent, kind=self.kind, title=title, state={}, metadata=settings, started_at=at,
            redacted=self._is_redacting,
        )  # fmt: skip

    def _index(self, session: CapturedSession, turn: ModelTurn, reply: ModelReply | None) -> None:
        if session.ends_at and session in (there := self._by_end.get(session.ends_at, [])):
            there.remove(session)
        session.ends_at = turn.chain[-1]
        self._by_end.setdefault(session.ends_at, []).append(session)
        if reply is not None and reply.id and turn.family in ("responses", "ollama"):
            self._by_response[reply.id] = session

    def _recover(self, spools: frozenset[str]) -> None:
        for recording, captured, _ in self._unfinished(spools):
            session = CapturedSession(captured, recording.agent)
            last = session.taken_up(recording, self._capturing.runtime.now_micros())
            self._stored |= session.stored
            if not recording.steps:
                self._begun[recording.started_at] = session
            elif last is None:
                self._loose = session
            else:
                self._live.append(session)
                self._index(session, *last)

    def _unfinished(self, spools: frozenset[str]) -> Iterator[tuple[Recording, CapturedRun, str]]:
        """Yield the open runs of these spools, resumed; each with its spool."""
        log = self._log
        for row in reversed(log.runs(outcome="running")):
            recording = log.recording(row.run)
            captured = recording.metadata.get("capture") if recording.kind == self.kind else None
            if isinstance(captured, dict) and captured.get("spool") in spools:
                attempts = log.state(f"run/{row.run}").fields.get("attempts", 1)
                yield recording, self._capturing.resume(recording, attempts + 1), str(captured["spool"])


class CapturedSession:
    """One session's run. reply: the answer to the last turn. ends_at: the hash of the last turn's messages."""

    def __init__(self, captured: CapturedRun, agent: str) -> None:
        self.run = captured.id
        self.sink = captured.sink
        self.reply: ModelReply | None = None
        self.ends_at = ""
        self.stored: set[int] = set()
        self._captured = captured
        self._agent = agent
        self._number = 0
        self._began: set[int] = set()
        self._messages = 0
        self._family: Any = ""
        self._state: dict[str, Any] = {}
        self._open: PendingAttempt | None = None
        self._last_at = self._taken_up_at = 0

    @property
    def number(self) -> int:
        """The number of the last step."""
        return self._number

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
        ended_at = exchange.at + round(exchange.duration_ms * 1000)
        attempt = PendingAttempt(1, exchange.at, ended_at=ended_at)
        self.sink.step_begun(self._number, exchange.name if turn is None else TURN, 1, exchange.at)
        self._note_denial(exchange)
        made = self._model_call(exchange)
        attempt.made.append(made)
        self.sink.call_ended(made)
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
        self.sink.flush()
        self._ask(reply.calls, ended_at)

    def _note_denial(self, exchange: SpooledExchange) -> None:
        """Observe that a policy at the proxy denied the exchange, if it did. This is done before the exchange counts as
        stored, so that a process that is killed in between observes it again, on the same entity."""
        decision = denial_in(exchange.answer)
        if decision is not None:
            asked = RecordedRequest(kind="model", name=exchange.name, request=exchange.request)
            step = f"{self.run}#{self._number}"
            patch = denial_patch(decision, asked, step, exchange.at)
            self._captured.observe(denial_entity(step, asked), patch, self._number, exchange.at)

    def end(self) -> None:
        """End the run, and everything that is open in it."""
        is_done = self.reply is not None and self._open is None
        if self._open is not None:
            self._close([], self._last_at)
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
        self._state, self._taken_up_at = recording.state, now
        self._part(recording, 0)
        for step in recording.steps:
            calls = [call for call in step.calls if call.asked.kind == "model"]
            self.stored |= {call.started_at for call in calls}
            self._number = step.number
            if calls:
                self._last_at = calls[-1].started_at + round(calls[-1].duration_ms * 1000)
                turn = turn_of(calls[-1].asked.request)
                reply = None if turn is None else reply_of(turn.family, calls[-1].answer)
            if step.is_committed or step.outcome == "unknown":
                self._take_over(recording, step)
                continue
            self._reopened(step, turn, reply)
        if turn is None:
            return None
        self.reply, self._family, self._messages = reply, turn.family, len(turn.messages)
        return turn, reply

    def forked(self, recording: Recording, forked: ForkedTurn) -> None:
        """Begin as a fork. recording: the fork's own head, with the parent's steps up to the fork."""
        self._state = recording.state
        self._part(recording, 0)
        for step in recording.steps:
            self._number = step.number
            self._take_over(recording, step)
        self.reply = forked.reply
        if forked.turn is not None:
            self._family, self._messages = forked.turn.family, len(forked.turn.messages)

    def _take_over(self, recording: Recording, step: Step) -> None:
        """Add a recorded step, and the changes of a fork after it."""
        self._state = applied(self._state, step.delta)
        self.sink.taken(step, self._state)
        self._part(recording, step.number)

    def _part(self, recording: Recording, number: int) -> None:
        for fork in recording.parted:
            if fork.at == number:
                self._state = applied(self._state, fork.changes)
                self.sink.forked(fork.patch, self._state)

    def _reopened(self, step: Step, turn: ModelTurn | None, reply: ModelReply | None) -> None:
        began = step.attempts[-1].started_at or self._last_at
        attempt = PendingAttempt(1, began, ended_at=self._last_at)
        for call in step.calls:
            made = PendingCall(
                call.asked.kind, call.asked.name, encoded(call.asked.request, "a request"),
                answer=encoded(call.answer, "an answer"), failure=call.failure, started_at=call.started_at,
                duration_ms=call.duration_ms, is_open=False,
            )  # fmt: skip
            attempt.made.append(made)
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
            started_at=exchange.at, duration_ms=exchange.duration_ms, is_open=False, place=(self._number, 1),
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


def _failure_of(exchange: SpooledExchange) -> Failure | None:
    """Return the failure of a turn: no response, a status that is an error, or a connection that broke."""
    if exchange.failure is not None:
        return Failure(exception=exchange.failure.name, message=exchange.failure.message)
    status, end = exchange.answer["status"], exchange.answer["end"]
    if status >= 400:
        return Failure(exception=f"HTTP {status}", message=f"{exchange.name} was answered with status {status}")
    if end == "whole":
        return _refused_of(exchange.answer)
    error = exchange.answer.get("error") or {"class": "AgentLeft", "message": "the agent read no further"}
    return Failure(exception=error["class"], message=error["message"])


def _refused_of(answer: Plain) -> Failure | None:
    """Return the failure in an event of a WebSocket that reports what elsewhere an error's status reports."""
    if not is_of_messages(answer) or not answer["chunks"] or not isinstance(answer["chunks"][-1][1], str):
        return None
    event = parsed(answer["chunks"][-1][1])
    if not isinstance(event, dict) or event.get("type") != "error":
        return None
    error = event.get("error")
    message = error.get("message") if isinstance(error, dict) else None
    return Failure(exception=f"HTTP {event.get('status', 'error')}", message=str(message or "the response is an error"))
