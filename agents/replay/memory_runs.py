"""Runs in memory without access to the outside: those of a replay, and ended nested runs of a run that continues."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from refold.agents.journal.chain import start_hash
from refold.agents.journal.record import Plain, Recording, Step
from refold.agents.recorder.answers import Answers, ChildAnswers, WithinRun
from refold.agents.recorder.children import ChildCall, RunOptions
from refold.agents.recorder.run import Run
from refold.agents.recorder.run_backend import Nondeterminism, ReplayBackend
from refold.agents.recorder.run_sinks import MemorySink
from refold.agents.recorder.step_assembler import StepAssembler
from refold.agents.redaction.redactor import Redact, unredacted
from refold.agents.replay.watch import outside

Fields = Callable[[str, Plain], Mapping[str, Any]]
"""Looks up the values of a recorded read: (entity, the record of the read) -> its fields."""
OnStray = Callable[[str], Exception]


class InMemory(NamedTuple):
    """A run, and the sink that collects what it does."""

    run: Run
    sink: MemorySink
    folder: StepAssembler
    children: MemoryChildren

    @property
    def recording(self) -> Recording:
        """Return what it did so far, in steps that ended, with its nested runs."""
        return msgspec.structs.replace(self.sink.recording, children=self.children.recordings)

    @property
    def left_in(self) -> Step | None:
        """Return the step in which the code departed from the recording, as far as it ran."""
        left = self.run.left_step
        if left is None:
            return None
        attempts = (*left.earlier, *map(self.folder.attempt, left.attempts))
        return Step(number=left.number, name=left.name, attempts=attempts)

    @property
    def with_left(self) -> Recording:
        """Return the recording, including the step in which the code departed from it."""
        did, left = self.recording, self.left_in
        return did if left is None else msgspec.structs.replace(did, steps=(*did.steps, left))


class MemoryChildren:
    """Creates the nested runs of a run, all answered by recordings.

    Args:
        why: Why there can be no others.
    """

    def __init__(self, run: str, fields: Fields | None, redact: Redact | None, on_stray: OnStray | None, why: str = "",
                 ) -> None:  # fmt: skip
        self._run = run
        self._given = fields, redact, on_stray
        self._why = why or "the recording has nothing of it"
        self._found: dict[str, InMemory] = {}

    @property
    def recordings(self) -> dict[str, Recording]:
        """Return what they did, by their ids."""
        return {run: each.with_left for run, each in self._found.items()}

    def require_log(self, url: str) -> None:
        """Accept any log: none is used."""

    def begin(self, head: Recording, options: RunOptions, within: ChildAnswers, call: ChildCall) -> Run:
        """As Children."""
        if within.recording is None or not within.is_whole:
            raise WithinRun(self._run, head.agent, self._why)
        run = in_memory(within.recording, within.answers, *self._given, call=call)
        self._found[run.run.id] = run
        return run.run


def in_memory(
    recording: Recording, answers: Answers, fields: Fields | None, redact: Redact | None, on_stray: OnStray | None,
    *, call: ChildCall | None = None,
) -> InMemory:  # fmt: skip
    """Return a run that repeats a recording.

    Args:
        recording: The recording.
        answers: The source of its answers.
        fields: Looks up the values of reads.
        redact: The redactor with which it was recorded.
        on_stray: In a replay, creates the error for a call outside of every run.
        call: For a nested run, the parent's side of it.
    """
    head = msgspec.structs.replace(
        recording, steps=(), status="running", outcome="", output=None, failure=None, hash="", children={}
    )
    known = recording.steps if redact is None else ()
    start = start_hash(head.agent, head.input, head.seed, head.state)
    folder = StepAssembler(redact or unredacted, start, head.state, known)
    sink = MemorySink(head, folder, redact or unredacted)
    chance = Nondeterminism(lambda: 0, lambda: "", lambda: 0.0, lambda _: None, _no_time)
    children = MemoryChildren(head.run, fields, redact, on_stray)
    run = Run(
        head, answers=answers, sink=sink, backend=Reading(fields), chance=chance, redact=redact or unredacted,
        on_stray=on_stray, children=children, call=call,
    )  # fmt: skip
    return InMemory(run, sink, folder, children)


class Reading(ReplayBackend):
    """Reads the values of recorded reads, and nothing else."""

    def __init__(self, fields: Fields | None) -> None:
        self._fields = fields

    def fields(self, entity: str, answer: Plain) -> Mapping[str, Any]:
        """Return the recorded values, or look them up. refold reads its own log here, not the agent."""
        if self._fields is None or "fields" in answer:
            return super().fields(entity, answer)
        with outside():
            return self._fields(entity, answer)


async def _no_time(seconds: float) -> None:
    """Replace a wait in a replay: return at once."""
