"""How a run ended: written by its sink, then told to the run around it."""

from __future__ import annotations

from dataclasses import dataclass

from refold.agents.journal.record import Failure, Outcome, Plain
from refold.agents.recorder.answers import Departure
from refold.agents.recorder.children import ChildCall
from refold.agents.recorder.context import in_thread, waited_for
from refold.agents.recorder.sinks import RunSink


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of one run. call: of a run within another, the other's side of it. at: microseconds.

    departure: the code left what the recording holds. error: what is raised when the end is recorded; after a
    departure, what the code ended with.
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
        """Durable on return; raises what is to be raised."""
        self._conclude(self._write())

    async def record_beside_loop(self) -> None:
        """The same, while the event loop goes on."""
        written = in_thread(self._write)
        try:
            await waited_for(written)
        finally:  # also of a task that was cancelled meanwhile
            self._conclude(written.result())

    def _write(self) -> str:
        """In any thread. The run's hash."""
        if self.departure is None:
            return self.sink.ended(self.outcome, self.output, self.failure, self.at)
        assert self.failure is not None
        self.sink.departed(self.failure, self.at)
        return ""

    def _conclude(self, whole: str) -> None:
        """Where the run's code is. A departure is raised unless the code did: it may have caught it."""
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
