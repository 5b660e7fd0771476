"""A summary of a run, for assertions: tools, counts, states, how it ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from refold.agents.journal.objects import loaded
from refold.agents.journal.record import Call, Failure, Kind, Outcome, Plain, Recording
from refold.agents.journal.self_replay import states
from refold.avro.errors import InputError


class RunSummary:
    """A summary of a run. `recording` has all of it.

    did.tools                       names of the tools called, in order, those of failed attempts too
    did.count("search_docs")        how often a tool was called
    did.calls("refund")             its calls; each has asked.request {"args", "kwargs"}, answer, failure
    did.state_at(3)["ticket"]       the run's state after step 3; 0: at the start; -1: at the end
    did.outcome, did.output         "succeeded", "failed"...; what the agent returned
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def __repr__(self) -> str:
        return f"<{self.recording.agent} {self.outcome or 'not ended'}: {', '.join(self.tools) or 'no tools'}>"

    @property
    def outcome(self) -> Outcome:
        """How it ended."""
        return self.recording.outcome

    @property
    def output(self) -> Any:
        """The agent's result."""
        return loaded(self.recording.output)

    @property
    def failure(self) -> Failure | None:
        """The failure, if it failed."""
        return self.recording.failure

    @property
    def hash(self) -> str:
        """The hash of everything that it did (journal/chain.py)."""
        return self.recording.hash

    @property
    def tools(self) -> list[str]:
        """The tools called, in order."""
        return [call.asked.name for call in self.calls()]

    @property
    def steps(self) -> list[str]:
        """The names of the steps, in order; those without a name by their number."""
        return [step.name or str(step.number) for step in self.recording.steps]

    @property
    def decisions(self) -> list[Plain]:
        """The agent's choices, in order."""
        return [call.asked.request["choice"] for call in self.calls(kind="decide")]

    def calls(self, name: str = "", *, kind: Kind = "tool") -> list[Call]:
        """Return the calls of a kind, in order; with a name, only those of that name."""
        return [each for each in self._all_calls() if each.asked.kind == kind and name in ("", each.asked.name)]

    def count(self, name: str = "", *, kind: Kind = "tool") -> int:
        """Return the number of calls of a kind; with a name, only of those with that name."""
        return len(self.calls(name, kind=kind))

    def state_at(self, step: int) -> Any:
        """Return the state after a step, counted from 1.

        Raises:
            InputError: The run did not get that far.
        """
        kept = list(states(self.recording))
        if not -len(kept) <= step < len(kept):
            raise InputError(f"there is no step {step}: the run has {len(kept) - 1}")
        return loaded(kept[step])

    @property
    def state(self) -> Any:
        """The state at the end."""
        return self.state_at(-1)

    def _all_calls(self) -> Iterator[Call]:
        for step in self.recording.steps:
            for attempt in step.attempts:
                yield from attempt.calls
