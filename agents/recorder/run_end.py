"""The end of a run: written by its sink, then reported to the outer run."""

from __future__ import annotations

from dataclasses import dataclass

from refold.agents.journal.record import Failure, Outcome, Plain
from refold.agents.recorder.answers import Departure
from refold.agents.recorder.children import ChildCall
from refold.agents.recorder.context import in_thread, waited_for
from refold.agents.recorder.run_sinks import RunSink


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of one run.

    Attributes:
        call: For a nested run, the parent's side of it.
        at: When the run ended, in microseconds since 1970.
        departure: How the code departed from the recording; None if it did not.
        error: The exception to raise after the end is recorded; after a departure, the one that the code ended with.
    """

    sink: RunSink
    call: ChildCall | None
    failure: Failure | None
    at: int
    outcome: Outcome = "failed"
    output: Plain = None
    departure: Departure | None = None
    error: BaseException | None = None

    def record(self) -> None:
        """Record the end, durable on return. Raises the error, if any."""
        self._conclude(self._write())

    async def record_beside_loop(self) -> None:
        """As `record`, while the event loop continues."""
        written = in_thread(self._write)
        try:
            await waited_for(written)
        finally:  # also if the task is cancelled meanwhile
            self._conclude(written.result())

    def _write(self) -> str:
        """Write the end, in any thread. Return the run's hash."""
        if self.departure is None:
            return self.sink.ended(self.outcome, self.output, self.failure, self.at)
        assert self.failure is not None
        self.sink.departed(self.failure, self.at)
        return ""

    def _conclude(self, whole: str) -> None:
        """Conclude the run, in the thread of its code. A departure is raised unless the code raises it: the code may
        have caught it."""
        if self.departure is not None:
            if self.call is not None:
                self.call.departed(self.departure)
            if self.error is not self.departure:
                raise self.departure from self.error
            return
        if self.call is not None:
            self.call.ended(self.outcome, whole)
        if self.error is not None:
            raise self.error
