"""A run's sink that lets the run wait before a step while its agent is paused."""

from __future__ import annotations

from collections.abc import Callable

from refold.agents.journal.record import Failure, Outcome, Plain, Step
from refold.agents.recorder.sinks import RunSink
from refold.agents.recorder.step_assembler import PendingAttempt, PendingCall, PendingStep
from refold.agents.supervise.gate import PauseGate


class GatedSink:
    """Waits at a gate before each step. What was recorded before is durable then, so any supervisor can go on."""

    def __init__(self, sink: RunSink, gate: PauseGate, flush: Callable[[], None]) -> None:
        self._sink = sink
        self._gate = gate
        self._flush = flush

    def step_begun(self, number: int, name: str, attempt: int, at: int) -> None:
        """As RunSink. The step begins when the gate is open."""
        if self._gate.is_closed:
            self._sink.settle()
            self._flush()
            self._gate.wait()
        self._sink.step_begun(number, name, attempt, at)

    def call_ended(self, made: PendingCall) -> None:
        """As RunSink."""
        self._sink.call_ended(made)

    def attempt_failed(self, number: int, made: PendingAttempt) -> None:
        """As RunSink."""
        self._sink.attempt_failed(number, made)

    def step_ended(self, made: PendingStep) -> None:
        """As RunSink."""
        self._sink.step_ended(made)

    def taken(self, step: Step, state: Plain) -> None:
        """As RunSink. Nothing is waited for: the step is not run again."""
        self._sink.taken(step, state)

    def forked(self, patch: Plain, state: Plain) -> None:
        """As RunSink."""
        self._sink.forked(patch, state)

    def settle(self) -> None:
        """As RunSink."""
        self._sink.settle()

    def ended(self, outcome: Outcome, output: Plain, failure: Failure | None, at: int) -> str:
        """As RunSink."""
        return self._sink.ended(outcome, output, failure, at)

    def departed(self, failure: Failure, at: int) -> None:
        """As RunSink."""
        self._sink.departed(failure, at)
