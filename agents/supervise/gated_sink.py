"""A run's sink that lets the run wait before a step while its agent is paused."""

from __future__ import annotations

from collections.abc import Callable

from refold.agents.recorder.forwarding_sink import ForwardingSink
from refold.agents.recorder.run_sinks import RunSink
from refold.agents.supervise.gate import PauseGate


class GatedSink(ForwardingSink):
    """Waits at a gate before each step. What was recorded before is durable then, so any supervisor can continue.

    It does not wait before a recorded step that is taken: that is not run again.
    """

    def __init__(self, sink: RunSink, gate: PauseGate, flush: Callable[[], None]) -> None:
        """Put a gate in front of a sink.

        Args:
            sink: The run's sink.
            gate: The gate.
            flush: Makes what was recorded durable.
        """
        super().__init__(sink)
        self._gate = gate
        self._flush = flush

    def step_begun(self, number: int, name: str, attempt: int, at: int) -> None:
        """As RunSink. The step begins when the gate is open."""
        if self._gate.is_closed:
            self._sink.await_written()
            self._flush()
            self._gate.wait()
        super().step_begun(number, name, attempt, at)
