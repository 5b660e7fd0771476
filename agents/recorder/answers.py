"""Where a run's answers come from: the outside world, a recording, or a recording first and then the world.

The recorder asks before it does anything that the code cannot answer by itself:

1. `step` when a step is to begin: a committed step comes back whole, and its function is not called again.
2. `begun` before the first attempt of a step in this process: attempts are counted across restarts, and are kept in the
   step as they were.
3. `arguments` before a model or a tool is called: keyword arguments that replace the code's own in the request.
4. `within` when a run begins within this one: the answers of that run.
5. `call` for each call in a step: a recorded answer comes back and is served; None means that the world is asked.

What any of them raises is a Departure. It is not a failure of the agent: it is not recorded as one, no step is retried
for it, and it ends the run even if the agent's code caught it.

A live run always asks the world. A resume has the recorded steps first. A replay never asks the world. A fork has the
parent's steps up to the fork, and after that what its policy says.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from refold.agents.journal.record import Attempt, Call, Kind, Plain, RecordedRequest, Recording, Step
from refold.avro.errors import RefoldError

NO_ARGUMENTS: Mapping[str, Plain] = {}


class Departure(RefoldError):
    """The code did what a recording does not hold, or what it may not do here; nothing was done in its place.

    so_far: what the code did until then, in steps that ended; of a replay. left_in: the step it was in, as far as it
    came: its last call may be the one that was not answered.
    """

    so_far: Recording | None = None
    left_in: Step | None = None


class WithinRun(Departure):
    """A run was begun within one that is answered from a recording, which has nothing of it; it was not begun."""

    def __init__(self, run: str, agent: str, why: str) -> None:
        self.agent = agent
        super().__init__(
            f"run {run} begins a run of {agent} within itself, and {why}: it was not begun, for its writes would take "
            "place again"
        )


class CallSite(NamedTuple):
    """Where in a run something is asked: number and name of the step, number of its attempt; all counted from 1.

    branch: the thread or task that asks, as in Call.
    """

    step: int
    name: str
    attempt: int
    branch: str = ""


class Answers(Protocol):
    """What a run is answered with."""

    @property
    def is_world(self) -> bool:
        """Whether no recording answers."""

    @property
    def departure(self) -> Departure | None:
        """What was raised first, if anything was: it is raised from then on, whatever is asked."""

    def step(self, number: int, name: str) -> Step | None:
        """The committed step that is not to be run again; None: run it. For steps that are functions."""

    def call(self, place: CallSite, asked: RecordedRequest) -> Call | None:
        """What was answered to this request before; None: ask the world. Raises where neither may be.

        Equal requests in one step are answered by what the same branch got, in their order.
        """

    def begun(self, number: int) -> tuple[Attempt, ...]:
        """The attempts of the step that were begun before, in whatever process, and are not made again here.

        One that a crash cut short has its number alone.
        """

    def arguments(self, number: int, kind: Kind, name: str) -> Mapping[str, Plain]:
        """Keyword arguments of a call in that step, in place of the code's own: a fork's other model or prompt."""

    def keys(self, place: CallSite) -> Collection[str]:
        """Keys of effects that recorded calls of that attempt stand for: other calls of it do not get them."""

    def depart(self, departure: Departure) -> None:
        """Have the run end with this, unless it departed before."""

    def within(self, place: CallSite, head: Recording, found: Call | None) -> Within:
        """What a run that begins within is answered with. head: with the id that it gets where it is a new one. found:
        the recorded call that began it, if one did."""


class Within(NamedTuple):
    """How a run within is answered. answers: its own. recording: what these have, None without.

    is_whole: the recording has all that it did, and nothing of it is written again. stands: nor is it replayed, so it
    has to end as it ended. is_sought: what stands of it is not known, and the log is to be asked.
    """

    answers: Answers
    recording: Recording | None = None
    is_whole: bool = False
    stands: bool = False
    is_sought: bool = False


class World:
    """Everything is asked for and done."""

    is_world = True
    departure: Departure | None = None

    def step(self, number: int, name: str) -> Step | None:
        """None: run it."""
        return None

    def call(self, place: CallSite, asked: RecordedRequest) -> Call | None:
        """None: ask."""
        return None

    def begun(self, number: int) -> tuple[Attempt, ...]:
        """None."""
        return ()

    def arguments(self, number: int, kind: Kind, name: str) -> Mapping[str, Plain]:
        """The code's own."""
        return NO_ARGUMENTS

    def keys(self, place: CallSite) -> Collection[str]:
        """None."""
        return ()

    def depart(self, departure: Departure) -> None:
        """Nothing stands recorded that could be left."""

    def within(self, place: CallSite, head: Recording, found: Call | None) -> Within:
        """The world, too."""
        return Within(self)


WORLD = World()
