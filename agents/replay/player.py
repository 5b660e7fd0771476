"""The answers of a replay and of a resumed run: only the recording, or first the recording and then the world.

Replayer. Every step's code runs, every call is answered from the recording, and no call is really made:

1. Attempts of a step from before the run was resumed in it are not repeated: the calls of an attempt that a crash cut
   short are not known, and the process of one that failed ended with it. They are copied from the recording; the code
   runs from there.
2. A call is answered by an equal request of the same attempt (scope `step`), or of the run (scope `run`). Without one
   it is Unrecorded. From then on every call is: code that catches the error cannot continue.
3. In a fork, the steps of its parent are copied, and functions are not run: the fork did not run them either. The
   arguments in its patch apply again.
4. A run that did not end is replayed up to its last committed step, and ends there: EndOfRecording.
5. A recorded call that was never requested is `unused`: a difference too, which the step's hash shows.

Resumer. Committed steps are not run again: functions are skipped, and the calls in the body of a `with` step are
answered from the recording. The step must have the name of the committed one; the run checks that its block leaves the
same state (recorder/run_steps.py). The pending step continues with its remaining attempts. If its last attempt was cut
short, the calls that had ended answer equal calls of the next attempt, each once (recordings/durable_calls.py); every
other call is really made. A nested run is not such a call, because an equal concurrent one may have been cut short:
each is found in the log by its position. A fork is not resumed: its allowed writes are not recorded, and its parent can
be forked again. A continuation is a fork with a task (forked.py): it is resumed, and the arguments of its patch apply.

EndedRunAnswers. For a nested run that ended, in an outer run that continues: in a resumed run, and before a fork. Its
committed steps are not run again, as with a Resumer, and nothing follows them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from refold.agents.journal.difference import Difference
from refold.agents.journal.record import (
    OF_THE_CODE,
    Attempt,
    Call,
    Kind,
    Plain,
    RecordedRequest,
    Recording,
    Step,
    child_of,
)
from refold.agents.recorder.answers import NO_ARGUMENTS, WORLD, CallSite, ChildAnswers, Departure, WithinRun
from refold.agents.replay.call_cache import OF_THE_PROCESS, RecordedCallPosition, RecordedCalls, Scope
from refold.agents.replay.patch import NO_PATCH, Patch, read_patch
from refold.agents.replay.unrecorded import unrecorded
from refold.avro.errors import InputError


class Differs(Departure):
    """The code begins another step than the committed one, so it cannot continue from the recording."""

    def __init__(self, run: str, recorded: Step, name: str) -> None:
        self.recorded = recorded
        self.name = name
        super().__init__(
            f"step {recorded.number} of run {run} is committed, and today's code begins another one there: "
            f"{Difference('name', name, recorded.name).line('now', 'recorded')}; go on with the code that recorded it, "
            f"or fork the run before this step (--at {recorded.number - 1})"
        )


class EndOfRecording(Departure):
    """A run that did not end was replayed to the end of its recording."""


class Replayer:
    """Answers only from a recording.

    Attributes:
        departure: The first call that it could not answer; None if it answered every call.
    """

    makes_every_call = False

    def __init__(self, recording: Recording, scope: Scope = "step", *, arguments: Patch = NO_PATCH) -> None:
        """Prepare the answers.

        Args:
            recording: The recording.
            scope: Which answers a request may get (call_cache.py).
            arguments: The changes that a fork makes in this nested run.
        """
        self._recorded = RecordedCalls(recording, scope)
        self._earlier = {step.number: attempts_before_resume(step) for step in recording.steps}
        self._parents = CommittedSteps(recording, recording.forked_at)
        self._patch = read_patch(recording.patch).with_arguments(arguments)
        self._recording = recording
        self._last = sum(1 for step in recording.steps if step.is_committed)
        self._taken: set[tuple[int, int]] = set()
        self._made_up = 0
        self.departure: Departure | None = None

    def step(self, number: int, name: str) -> Step | None:
        """Return None, so that the code is run, except for the steps of a fork's parent."""
        if not self._parents.has(number):
            return None
        step = self._parents.step(number, name)
        self._taken |= {(number, each.number) for each in step.attempts}
        return step

    def begun(self, number: int) -> tuple[Attempt, ...]:
        """Return the attempts before the run was last resumed in this step.

        Raises:
            EndOfRecording: The run did not end, and this is after its last step.
        """
        if not self._recording.hash and number > self._last:
            run = self._recording.run
            self.depart(EndOfRecording(f"run {run} did not end: its recording holds {self._last} steps that did"))
        self._require()
        attempts = self._earlier.get(number, ())
        self._taken |= {(number, each.number) for each in attempts}
        return attempts

    def arguments(self, number: int, kind: Kind, name: str) -> Mapping[str, Plain]:
        """Return the code's own arguments; after a fork, those of its patch."""
        if self._parents.has(number):
            return self._parents.arguments(number, kind, name)
        return self._patch.arguments_of(kind, name)

    def call(self, site: CallSite, request: RecordedRequest) -> Call | None:
        """Return the recorded call; None for kinds that the code computes itself.

        Raises:
            Unrecorded: There is none.
        """
        self._require()
        found = self._recorded.take(site, request) or self._replacement_call(request)
        if found is None and request.kind not in OF_THE_CODE:
            self.depart(unrecorded(self._recorded, site, request))
            self._require()
        return found

    def _replacement_call(self, request: RecordedRequest) -> Call | None:
        """Return a replacement for a call that is not recorded."""
        if self._recorded.scope == "run" and request.kind in OF_THE_PROCESS:
            self._made_up += 1
            return self._recorded.made_up(request, self._made_up - 1)
        return None

    def keys(self, site: CallSite) -> Collection[str]:
        """Return no keys: nothing is sent."""
        return ()

    def depart(self, departure: Departure) -> None:
        """End the run with this departure, unless it departed before."""
        self.departure = self.departure or departure

    def within(self, site: CallSite, head: Recording, found: Call | None) -> ChildAnswers:
        """Return the answers of a nested run, replayed; a fork's patch applies to it, too."""
        child = child_in(self._recording, head, found)
        patch = NO_PATCH if self._parents.has(site.step) else self._patch.arguments_alone
        return ChildAnswers(self._child_replayer(child, patch), child, is_whole=True)

    def _child_replayer(self, child: Recording, patch: Patch) -> Replayer:
        return Replayer(child, self._recorded.scope, arguments=patch)

    def _require(self) -> None:
        """Raise the earlier departure again: code that caught it cannot continue."""
        if self.departure is not None:
            raise self.departure

    def unused(self) -> tuple[RecordedCallPosition, ...]:
        """Return the recorded calls that were not requested, although their step was run."""
        return tuple(at for at in self._recorded.unused() if (at.site.step, at.site.attempt) not in self._taken)


class CommittedSteps:
    """Answers of the committed steps, up to one of them: the part that resumed runs and forks share."""

    def __init__(self, recording: Recording, through: int) -> None:
        """Prepare the answers.

        Args:
            through: The number of the last step whose calls are answered.
        """
        self._recording = recording
        self._recorded = RecordedCalls(recording)
        self._steps = {
            step.number: step for step in recording.steps if step.is_committed and step.number <= through
        }  # fmt: skip
        self.departure: Departure | None = None

    def has(self, number: int) -> bool:
        """Return whether the step is one of them."""
        return number in self._steps

    def step(self, number: int, name: str) -> Step:
        """Return the step, which is not run again.

        Raises:
            Differs: The code gives it another name.
        """
        self.require()
        step = self._steps[number]
        if step.name != name:
            self._depart(Differs(self._recording.run, step, name))
        return step

    def begun(self, number: int) -> tuple[Attempt, ...]:
        """Return the attempts before the run was last resumed in this step."""
        return attempts_before_resume(self._steps[number])

    def arguments(self, number: int, kind: Kind, name: str) -> Mapping[str, Plain]:
        """Return the arguments with which a step was recorded in place of the code's own: those of the fork that
        recorded it."""
        patch = next((each.patch for each in reversed(self._recording.parted) if each.at < number), None)
        return read_patch(patch).arguments_of(kind, name)

    def call(self, site: CallSite, request: RecordedRequest) -> Call | None:
        """Return the recorded call; None for kinds that the code computes itself.

        Raises:
            Unrecorded: There is none.
        """
        self.require()
        found = self._recorded.take(site, request)
        if found is None and request.kind not in OF_THE_CODE:
            self._depart(unrecorded(self._recorded, site, request))
        return found

    def require(self) -> None:
        """Raise the earlier departure again: code that caught it cannot continue."""
        if self.departure is not None:
            raise self.departure

    def within(self, head: Recording, found: Call | None) -> ChildAnswers:
        """Return the answers of a nested run that ended with its step or before."""
        self.require()
        child = child_in(self._recording, head, found)
        return ChildAnswers(EndedRunAnswers(child), child, is_whole=True, is_final=True)

    def _depart(self, departure: Departure) -> None:
        self.departure = departure
        raise departure


class EndedRunAnswers:
    """Answers of a nested run that ended, in an outer run that continues."""

    makes_every_call = False

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._committed = CommittedSteps(recording, len(recording.steps))

    @property
    def departure(self) -> Departure | None:
        """The first difference from the committed steps."""
        return self._committed.departure

    def step(self, number: int, name: str) -> Step:
        """Return the committed step.

        Raises:
            WithinRun: The code continues after the last step.
        """
        self._require_recorded(number)
        return self._committed.step(number, name)

    def begun(self, number: int) -> tuple[Attempt, ...]:
        """Return the attempts before the run was last resumed in this step."""
        self._require_recorded(number)
        return self._committed.begun(number)

    def keys(self, site: CallSite) -> Collection[str]:
        """Return no keys: nothing is sent."""
        return ()

    def arguments(self, number: int, kind: Kind, name: str) -> Mapping[str, Plain]:
        """Return no arguments: the code's own are used."""
        return NO_ARGUMENTS

    def call(self, site: CallSite, request: RecordedRequest) -> Call | None:
        """Return the recorded call; None for kinds that the code computes itself.

        Raises:
            Unrecorded: There is none.
        """
        return self._committed.call(site, request)

    def depart(self, departure: Departure) -> None:
        """End the run with this departure, unless it departed before."""
        self._committed.departure = self._committed.departure or departure

    def within(self, site: CallSite, head: Recording, found: Call | None) -> ChildAnswers:
        """Return the answers of a nested run, which ended too."""
        return self._committed.within(head, found)

    def _require_recorded(self, number: int) -> None:
        self._committed.require()
        if not self._committed.has(number):
            ended = f"it ended with step {len(self._recording.steps)}, and its code goes on"
            self.depart(WithinRun(self._recording.caller, self._recording.agent, ended))
            self._committed.require()


class Resumer:
    """Answers of a resumed run: committed steps from the recording, then the world."""

    makes_every_call = False

    def __init__(self, recording: Recording) -> None:
        if recording.parent and not recording.task:
            raise InputError(
                f"run {recording.run} is a fork, and a resume would not know its write tools: fork run "
                f"{recording.parent} again at {recording.forked_at}"
            )
        self._at = recording.forked_at if recording.parent else 0
        self._patch = read_patch(recording.patch)
        self._committed = CommittedSteps(recording, len(recording.steps))
        pending = [step for step in recording.steps if not step.is_committed]
        self._pending = {step.number: tuple(map(_by_number, step.attempts)) for step in pending}
        cut_short = tuple(msgspec.structs.replace(step, attempts=(_cut_short(step),)) for step in pending)
        self._cut_short = {step.number: step.attempts[0].number for step in cut_short}
        self._answered = RecordedCalls(msgspec.structs.replace(recording, steps=cut_short), is_cut_short=True)

    @property
    def departure(self) -> Departure | None:
        """The first difference from the committed steps."""
        return self._committed.departure

    def step(self, number: int, name: str) -> Step | None:
        """Return the committed step; None if it must be run."""
        self._committed.require()
        return self._committed.step(number, name) if self._committed.has(number) else None

    def begun(self, number: int) -> tuple[Attempt, ...]:
        """Return every attempt of the pending step, because they count."""
        return self._committed.begun(number) if self._committed.has(number) else self._pending.get(number, ())

    def arguments(self, number: int, kind: Kind, name: str) -> Mapping[str, Plain]:
        """Return the code's own arguments; in a continuation, those of its patch."""
        if number > self._at:
            return self._patch.arguments_of(kind, name)
        return self._committed.arguments(number, kind, name)

    def call(self, site: CallSite, request: RecordedRequest) -> Call | None:
        """Return the recorded call in a committed step, and in the attempt after one that was cut short; else None."""
        self._committed.require()
        if self._committed.has(site.step):
            return self._committed.call(site, request)
        cut_short = None if request.kind == "run" else self._cut_short_before(site)
        return None if cut_short is None else self._answered.take(cut_short, request)

    def keys(self, site: CallSite) -> Collection[str]:
        """Return the keys of writes that ended in an attempt that was cut short: an equal write that did not end is
        another effect."""
        cut_short = self._cut_short_before(site)
        return () if cut_short is None else self._answered.keys(cut_short)

    def _cut_short_before(self, site: CallSite) -> CallSite | None:
        """Return the attempt that was cut short, if this is the one after it."""
        cut_short = self._cut_short.get(site.step)
        return site._replace(attempt=cut_short) if cut_short is not None and site.attempt == cut_short + 1 else None

    def depart(self, departure: Departure) -> None:
        """End the run with this departure, unless it departed before."""
        self._committed.departure = self._committed.departure or departure

    def within(self, site: CallSite, head: Recording, found: Call | None) -> ChildAnswers:
        """Return the answers of a nested run by its record: if it ended, it is not repeated; if it was cut short, it
        continues."""
        self._committed.require()
        return self._committed.within(head, found) if found is not None else ChildAnswers(WORLD, is_sought=True)


def child_in(recording: Recording, head: Recording, found: Call | None) -> Recording:
    """Return the recording of the run that a recorded call began.

    Raises:
        WithinRun: It is missing.
    """
    run = "" if found is None else child_of(found)
    child = recording.children.get(run)
    if child is None:
        raise WithinRun(recording.run, head.agent, f"the recording of that run ({run}) is not there")
    return child


def _cut_short(step: Step) -> Attempt:
    """Return the attempts that were cut short since one ended, as one attempt: the last, with the calls of all."""
    calls: list[Call] = []
    for each in step.attempts:
        calls = [] if each.ended_at else [*calls, *each.calls]
    return Attempt(number=len(step.attempts), calls=tuple(calls))


def _by_number(attempt: Attempt) -> Attempt:
    """Return an attempt as the chain of hashes has it: if it was cut short, only its number."""
    return attempt if attempt.ended_at else msgspec.structs.replace(attempt, calls=())


def attempts_before_resume(step: Step) -> tuple[Attempt, ...]:
    """Return the attempts before the run was last resumed in this step; this includes every one that a crash cut
    short."""
    earlier = 0
    for index, each in enumerate(step.attempts[:-1], 1):
        if each.failure is None or each.life < step.attempts[-1].life:
            earlier = index
    return step.attempts[:earlier]
