"""Write traces into one open log: a trace is a run, with a step for each turn.

    run       agent NAME, its first agent's; kind `openai-agents`; title: the workflow's name; its metadata says in
              `openai_agents` the trace's id, its group and its own metadata; linked `recorded_by` to the run of refold
              that records its calls, if there is one
    step n    the n-th turn that ended: its model call, its tool calls, its handoff and guardrails as decisions
    action    each tool call also as `action/RUN#n.k`

Each piece is written once: a run's steps have numbers, and after a failure the log says how many it has. The caller
then drops this object, opens the log again, and puts the same pieces again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refold.agents.adapters.openai_agents.trace_steps import TracedCall, TracedStep, TraceEnd
from refold.agents.adapters.quoting import quoted
from refold.agents.journal.record import Failure, Plain, Recording
from refold.agents.live import CapturedRun, CaptureRecorder
from refold.agents.log import AgentLog
from refold.agents.recorder.plain import encoded
from refold.agents.recorder.step_assembler import PendingAttempt, PendingCall, PendingStep
from refold.agents.redaction.redactor import Redact, is_redacting

KIND = "openai-agents"
GAP = "refold.CaptureGap"
RECORDED_BY = "recorded_by"


@dataclass(slots=True)
class TraceHead:
    """How a trace begins.

    Attributes:
        run: The id of its run. It changes if the log has another run with this id.
        source: The run of refold that records its calls.
        is_begun: Whether its run was begun, or that was tried.
        missed_steps: How many of its steps the log refused.
        missed_spans: The number of spans whose content was dropped.
    """

    run: str
    trace: str
    name: str
    agent: str
    input: Plain
    started_at: int
    source: str = ""
    group: str | None = None
    metadata: Plain = None
    is_begun: bool = False
    missed_steps: int = 0
    missed_spans: int = 0
    renamed: int = 1


@dataclass(slots=True)
class _OpenRun:
    captured: CapturedRun
    steps: int = 0
    resumed_at: int = 0  # what is observed of its status before that has no effect


class TraceRuns:
    """The runs of traces in one open log. Nothing is durable before `flush`."""

    def __init__(self, log: AgentLog, redact: Redact | None) -> None:
        self._log = log
        self._capturing: CaptureRecorder = log.capturing(redact)
        self._is_redacting = is_redacting(redact)
        self._open: dict[int, _OpenRun] = {}  # by the id of the head

    def put_step(self, head: TraceHead, step: TracedStep) -> None:
        """Write a step, unless the log has it. Begins the run if needed."""
        found = self._run(head)
        if found is None or step.number <= found.steps + head.missed_steps:
            return
        number = found.steps + 1
        calls = [_pending_call(each) for each in step.calls]
        attempt = PendingAttempt(
            1, step.started_at, calls, failure=step.failure, ended_at=max(step.ended_at, step.started_at)
        )
        sink = found.captured.sink
        sink.step_begun(number, step.name, 1, step.started_at)
        self._act(found.captured, head, number, step)
        sink.step_ended(
            PendingStep(
                number, step.name, [attempt], encoded({}, "the state"), encoded(step.result, "a result"),
                "succeeded" if step.failure is None else "failed",
            )
        )  # fmt: skip
        found.steps = number

    def put_end(self, head: TraceHead, end: TraceEnd) -> None:
        """Write how a run ended, unless the log has it; durable on return."""
        found = self._run(head)
        if found is None:
            return
        failure, outcome = end.failure, end.outcome
        if failure is None and (head.missed_steps or head.missed_spans):
            message = f"{head.missed_steps} steps and the content of {head.missed_spans} spans were not recorded"
            failure, outcome = Failure(exception=GAP, message=message, at=end.at), "failed"
        output, at = None if head.source else end.output, max(end.at, found.resumed_at)
        found.captured.sink.ended(outcome, output, failure, at)
        self._open.pop(id(head), None)

    def flush(self) -> None:
        """Make everything written durable."""
        self._log.flush()

    def _run(self, head: TraceHead) -> _OpenRun | None:
        """Return the run of a trace, begun or taken up again; None if it has ended."""
        found = self._open.get(id(head))
        if found is not None:
            return found
        if head.is_begun and self._log.states([f"run/{head.run}"]):
            recording = self._log.recording(head.run)
            if recording.status == "ended":
                return None
            found = self._taken_up(recording)
        else:
            while not head.is_begun and self._log.states([f"run/{head.run}"]):
                head.renamed += 1  # another trace with this id was recorded
                head.run = f"{quoted(head.trace)}.{head.renamed}"
            head.is_begun = True
            found = _OpenRun(self._capturing.begin(self._recording_of(head)))
            if head.source:
                found.captured.link(f"run/{head.run}", RECORDED_BY, f"run/{head.source}", 0, head.started_at)
        self._open[id(head)] = found
        return found

    def _taken_up(self, recording: Recording) -> _OpenRun:
        attempts = self._log.state(f"run/{recording.run}").fields.get("attempts", 1)
        found = _OpenRun(self._capturing.resume(recording, attempts + 1))
        found.resumed_at = self._capturing.runtime.now_micros()
        for step in recording.steps:
            if step.is_committed:
                found.captured.sink.step_reused(step, {})
                found.steps = step.number
        return found

    def _recording_of(self, head: TraceHead) -> Recording:
        about: dict[str, Any] = {"trace": head.trace, "group": head.group, "metadata": head.metadata}
        metadata = {"openai_agents": {name: value for name, value in about.items() if value is not None}}
        return Recording(
            run=head.run, agent=head.agent, kind=KIND, title=head.name, state={}, metadata=metadata,
            input=None if head.source else head.input, started_at=head.started_at, redacted=self._is_redacting,
        )  # fmt: skip

    @staticmethod
    def _act(captured: CapturedRun, head: TraceHead, number: int, step: TracedStep) -> None:
        """Write the actions of a step. Before its end, because that says that the step is written."""
        name, listed = f"{head.run}#{number}", []
        tools = [each for each in step.calls if each.kind == "tool"]
        for position, call in enumerate(tools, 1):
            action = f"action/{name}.{position}"
            patch = {
                "tool": call.name, "agent": step.name, "run": head.run, "step": name, "position": position,
                "status": "succeeded" if call.failure is None else "failed", "started_at": call.started_at,
                "ended_at": call.ended_at, "duration_ms": _duration_ms(call),
            }  # fmt: skip
            arguments = call.request["args"] or call.request["kwargs"]
            given = {"inputs": arguments, "output": _output(call.answer)}
            payloads = {field: value for field, value in given.items() if value is not None}
            captured.observe(action, patch, number, call.ended_at, payloads=payloads)
            captured.link(action, "of", f"step/{name}", number, call.ended_at)
            listed.append({"position": position, "tool": call.name, "action": f"{name}.{position}", "call_id": None})
        if listed:
            captured.observe(f"step/{name}", {"calls": listed}, number, step.ended_at)


def _pending_call(call: TracedCall) -> PendingCall:
    kind: Any = call.kind
    return PendingCall(
        kind, call.name, encoded(call.request, "a request"), answer=encoded(call.answer, "an answer"),
        failure=call.failure, started_at=call.started_at, duration_ms=_duration_ms(call), is_open=False,
    )  # fmt: skip


def _duration_ms(call: TracedCall) -> float:
    return (call.ended_at - call.started_at) / 1000


def _output(answer: Plain) -> str | None:
    return answer if answer is None or isinstance(answer, str) else encoded(answer, "an answer").decode()
