"""A replay: today's code against a recording, or the recording without code.

With code:

1. A run is created that records into memory, is answered by a Replayer, and has no access to log, clock or randomness.
   Waits between attempts take no time.
2. The agent's function runs under guard: the network is closed.
3. Its actions form a new recording, with its own chain of hashes. It is the same run if the hashes are the same; else
   `parting` names the first differing step.
4. A departure (something unrecorded, something denied) is raised at the end in any case, even if the code caught it. An
   exception of the agent's code itself is not a departure: it is how that run ended, and the recorded one may have
   ended in the same way.

If the recorded run did not end, the replay ends where the recording does: the steps up to there are compared.

Without code a recording is stepped through: `stepped`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple

from refold.agents.entry import Agent
from refold.agents.journal.record import Plain, Recording, Step
from refold.agents.journal.self_replay import begun_with, chained, states
from refold.agents.recorder.answers import Departure
from refold.agents.redaction.redactor import Redact
from refold.agents.replay.call_cache import RecordedCallPosition
from refold.agents.replay.edges import Edge, edges
from refold.agents.replay.first_mismatch import FirstMismatch, parting
from refold.agents.replay.guard import NetworkGuard
from refold.agents.replay.memory_runs import Fields, in_memory
from refold.agents.replay.player import EndOfRecording, Replayer
from refold.agents.replay.unrecorded import OutsideOfRun
from refold.agents.replay.watch import Escape, source_line_of
from refold.avro.errors import InputError


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay.

    Attributes:
        recorded: The run as recorded.
        now: What the code did now.
        unused: The recorded calls that the code did not make now.
        escapes: The operations that ran, or were tried, and are not in the recording (agents/replay/guard.py); a thread
            that the code left behind may add to it.
        unheld: For a confined replay, why the kernel could not confine its files; empty if it did.
    """

    recorded: Recording
    now: Recording
    unused: tuple[RecordedCallPosition, ...]
    escapes: Sequence[Escape] = ()
    unheld: str = ""

    @property
    def hash(self) -> str:
        """The hash of what the code did now; if the recorded run did not end, of its last step."""
        return self.now.hash if self._is_whole else _hash(self.now, self._committed_count)

    @property
    def recorded_hash(self) -> str:
        """The recorded hash."""
        return self.recorded.hash if self._is_whole else _hash(self.recorded, self._committed_count)

    @property
    def is_same(self) -> bool:
        """Whether the code did exactly what was recorded, to the last call, and nothing else."""
        return not self.escapes and self.hash == self.recorded_hash

    @property
    def parting(self) -> FirstMismatch | None:
        """The first difference; None if everything that was recorded is the same."""
        return None if self.hash == self.recorded_hash else parting(self.now, self.recorded)

    @property
    def edges(self) -> Iterator[Edge]:
        """Yield how each edge of the recording can be reproduced."""
        return edges(self.recorded)

    @property
    def _is_whole(self) -> bool:
        return bool(self.recorded.hash)  # only a run that ended has a hash

    @property
    def _committed_count(self) -> int:
        return sum(1 for step in self.recorded.steps if step.is_committed)


def replayed(
    agent: Agent, recording: Recording, *, fields: Fields | None = None, redact: Redact | None = None,
    answers: Replayer | None = None, confined_to: str = "",
) -> Replayed:  # fmt: skip
    """Run an agent's code, sync or async, against a recording.

    Args:
        agent: The agent's function.
        recording: The recording.
        fields: Looks up the values of reads, for recordings without them.
        redact: The redactor with which the run was recorded.
        answers: More lenient answers instead of a Replayer's.
        confined_to: If the kernel confines this process, the only folder in which it may write files.

    Raises:
        Departure: The code departed from the recording (Unrecorded, NetworkDenied).
        InputError: The recording has no code.
    """
    under = _OpenReplay(recording, fields, redact, answers, confined_to=confined_to)
    with under:
        if inspect.iscoroutinefunction(agent):
            asyncio.run(under.run.drive_async(agent))
        else:
            under.run.drive(agent)
    return under.result


async def replayed_async(
    agent: Agent, recording: Recording, *, fields: Fields | None = None, redact: Redact | None = None
) -> Replayed:
    """As `replayed`, in a running event loop."""
    under = _OpenReplay(recording, fields, redact)
    with under:
        await under.run.drive_async(agent)
    return under.result


class SteppedState(NamedTuple):
    """One step of a recording, with the states before it and after it.

    Attributes:
        is_whole: Whether its hash matches its content and the step before.
    """

    step: Step
    before: Plain
    after: Plain
    is_whole: bool


def stepped(recording: Recording) -> Iterator[SteppedState]:
    """Step through a recording without code."""
    proven = chained(recording).steps
    before, *after = states(recording)
    for step, proof, state in zip(recording.steps, proven, after, strict=True):
        yield SteppedState(step, begun_with(recording, step.number, before), state, is_whole=step == proof)
        before = state


class _OpenReplay:
    """One replay in progress; a context manager around the agent's code."""

    def __init__(
        self, recording: Recording, fields: Fields | None, redact: Redact | None, answers: Replayer | None = None,
        *, confined_to: str = "",
    ) -> None:  # fmt: skip
        if not recording.has_code:
            raise InputError(
                f"run {recording.run} was imported, so there is no code to run against it: step through it with "
                f"refold run steps {recording.run}"
            )
        self._recording = recording
        self._answers = answers or Replayer(recording)
        self._made = in_memory(recording, self._answers, fields, redact, self._stray)
        self.run = self._made.run
        self._guard = NetworkGuard(self._answers.depart, confined_to=confined_to)

    def __enter__(self) -> None:
        self._guard.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._guard.__exit__(kind, error, trace)
        if isinstance(error, Departure):
            error.so_far, error.left_in = self._made.recording, self._made.left_in
            return isinstance(error, EndOfRecording)
        # An exception of the agent is how its run ended, and is part of what it did now. An interrupt may be the
        # user's, and a cancellation that of the outer task, unless the recorded run ended in that way at this very
        # place.
        now = self._made.sink.recording
        is_agents = isinstance(error, Exception | SystemExit) or now.hash == self._recording.hash
        return is_agents and now.failure is not None

    @property
    def result(self) -> Replayed:
        """Return the result of the replay."""
        return Replayed(self._recording, self._made.recording, self._answers.unused(), self._guard.escapes)

    def _stray(self, what: str) -> Departure:
        """Deny a call outside of the run, wherever it comes from."""
        escape = Escape(what, source_line_of(""))
        self._guard.note(escape)
        departure = OutsideOfRun(self._recording.run, escape)
        self._answers.depart(departure)
        return departure


def _hash(run: Recording, count: int) -> str:
    """Return the hash of a run's first steps."""
    return run.steps[count - 1].hash if 0 < count <= len(run.steps) else ""
