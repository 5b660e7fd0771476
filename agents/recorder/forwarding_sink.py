"""A run's sink that passes everything on to another one; the base of sinks that add something."""

from __future__ import annotations

from refold.agents.journal.record import Failure, Outcome, Plain, Step
from refold.agents.recorder.run_sinks import RunSink
from refold.agents.recorder.step_assembler import PendingAttempt, PendingCall, PendingStep


class ForwardingSink:
    """Passes everything that a run does on. A subclass overrides what it adds to, and calls the method here."""

    def __init__(self, sink: RunSink) -> None:
        """Forward to a sink."""
        self._sink = sink

    def step_begun(self, number: int, name: str, attempt: int, at: int) -> None:
        """As RunSink."""
        self._sink.step_begun(number, name, attempt, at)

    def call_ended(self, call: PendingCall) -> None:
        """As RunSink."""
        self._sink.call_ended(call)

    def attempt_failed(self, number: int, attempt: PendingAttempt) -> None:
        """As RunSink."""
        self._sink.attempt_failed(number, attempt)

    def step_ended(self, step: PendingStep) -> None:
        """As RunSink."""
        self._sink.step_ended(step)

    def step_reused(self, step: Step, state: Plain) -> None:
        """As RunSink."""
        self._sink.step_reused(step, state)

    def forked(self, patch: Plain, state: Plain) -> None:
        """As RunSink."""
        self._sink.forked(patch, state)

    def await_written(self) -> None:
        """As RunSink."""
        self._sink.await_written()

    def ended(self, outcome: Outcome, output: Plain, failure: Failure | None, at: int) -> str:
        """As RunSink."""
        return self._sink.ended(outcome, output, failure, at)

    def departed(self, failure: Failure, at: int) -> None:
        """As RunSink."""
        self._sink.departed(failure, at)
