"""The source of a run's answers: the outside world, a recording, or first a recording and then the world.

The recorder asks it before it does anything that the code cannot compute itself:

1. `step` when a step is to begin: a committed step is returned whole, and its function is not called again.
2. `begun` before the first attempt of a step in this process: attempts are counted across restarts, and stay in the
   step unchanged.
3. `arguments` before a model or a tool is called: keyword arguments that replace the code's own in the request.
4. `within` when a nested run begins: the source of that run's answers.
5. `call` for each call in a step: a recorded answer is returned and used; None means that the call is really made.

Any of them may raise a Departure. A Departure is not a failure of the agent: it is not recorded as one, no step is
retried for it, and it ends the run even if the agent's code caught it.

A live run always calls the world. A resumed run has the recorded steps first. A replay never calls the world. A fork
has the parent's steps up to the fork, and after it follows its policy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from refold.agents.journal.record import Attempt, Call, Kind, Plain, RecordedRequest, Recording, Step
from refold.avro.errors import RefoldError

NO_ARGUMENTS: Mapping[str, Plain] = {}


class Departure(RefoldError):
    """The code did something that the recording does not hold, or that is not allowed here. It was not executed.

    Attributes:
        so_far: In a replay, what the code did until then, in steps that ended.
        left_in: The step in which it departed, as far as it ran; its last call may be the unanswered one.
    """

    so_far: Recording | None = None
    left_in: Step | None = None


class WithinRun(Departure):
    """A nested run was to begin that is not in the recording. It was not begun."""

    def __init__(self, run: str, agent: str, why: str) -> None:
        self.agent = agent
        super().__init__(
            f"run {run} begins a run of {agent} within itself, and {why}: it was not begun, for its writes would take "
            "place again"
        )


class CallSite(NamedTuple):
    """The position of a request in a run: number and name of the step, number of its attempt, counted from 1.

    Attributes:
        branch: The thread or task that makes it, as in Call.
    """

    step: int
    name: str
    attempt: int
    branch: str = ""


class Answers(Protocol):
    """The source of a run's answers."""

    @property
    def makes_every_call(self) -> bool:
        """Whether there is no recording that could answer."""

    @property
    def departure(self) -> Departure | None:
        """The first departure, if there was any. From then on every method raises it."""

    def step(self, number: int, name: str) -> Step | None:
        """Return the committed step that is not run again; None: run it. For steps that are functions."""

    def call(self, site: CallSite, request: RecordedRequest) -> Call | None:
        """Return the recorded answer to this request; None means that the call must really be made.

        Equal requests in one step are answered with what the same branch got, in order.

        Raises:
            Departure: Neither is allowed.
        """

    def begun(self, number: int) -> tuple[Attempt, ...]:
        """Return the attempts of the step that were begun before, in any process, and are not made again here.

        An attempt that a crash cut short has only its number.
        """

    def arguments(self, number: int, kind: Kind, name: str) -> Mapping[str, Plain]:
        """Return keyword arguments that replace the code's own in calls of that step: a fork's model or prompt."""

    def keys(self, site: CallSite) -> Collection[str]:
        """Return the keys of the effects of that attempt's recorded calls; other calls of it do not get these keys."""

    def depart(self, departure: Departure) -> None:
        """End the run with this departure, unless it departed before."""

    def within(self, site: CallSite, head: Recording, found: Call | None) -> ChildAnswers:
        """Return the source of a nested run's answers.

        Args:
            site: Where it begins.
            head: Its head, with the id that it gets if it is new.
            found: The recorded call that began it, if any.
        """


class ChildAnswers(NamedTuple):
    """The source of a nested run's answers.

    Attributes:
        answers: The run's own answers.
        recording: The run's recording; None without one.
        is_whole: Whether the recording holds everything that the run did, so that nothing of it is written again.
        is_final: Whether it is not replayed either, so it must end as recorded.
        is_sought: Whether the log must be searched, because it is not known whether it is recorded.
    """

    answers: Answers
    recording: Recording | None = None
    is_whole: bool = False
    is_final: bool = False
    is_sought: bool = False


class LiveAnswers:
    """Answers nothing: every call is really made."""

    makes_every_call = True
    departure: Departure | None = None

    def step(self, number: int, name: str) -> Step | None:
        """Return None: run it."""
        return None

    def call(self, site: CallSite, request: RecordedRequest) -> Call | None:
        """Return None: make the call."""
        return None

    def begun(self, number: int) -> tuple[Attempt, ...]:
        """Return no attempts."""
        return ()

    def arguments(self, number: int, kind: Kind, name: str) -> Mapping[str, Plain]:
        """Return no arguments: the code's own are used."""
        return NO_ARGUMENTS

    def keys(self, site: CallSite) -> Collection[str]:
        """Return no keys."""
        return ()

    def depart(self, departure: Departure) -> None:
        """Do nothing: there is no recording to depart from."""

    def within(self, site: CallSite, head: Recording, found: Call | None) -> ChildAnswers:
        """Return a source that answers nothing."""
        return ChildAnswers(self)


WORLD = LiveAnswers()
