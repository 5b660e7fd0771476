"""The answers of a fork: its parent's steps, then as its policy says, with the patch applied.

1. Steps up to `at` are the parent's. They are not run again, and must be committed.
2. After it, if the patch has a result for a call, that result is returned.
3. A write tool, and an observation, may run if it is allowed by name. Otherwise it gets the recorded answer to an equal
   request in the parent's steps after the fork, else the stand-in for tools of that name; without either it raises
   NotAllowed.
4. A nested run follows the same policy, with the same permissions and the same changed arguments. Its code runs; a
   recorded run that the parent began after the fork with the same input answers as the parent's steps do.
5. Everything else follows the policy:

    live       the call is really made
    recorded   the recorded answer to an equal request in the parent's steps after the fork; without one it raises
               Unrecorded
    asked      the same, but without one the user is asked: for an answer, or whether the call may really be made

   Clock, randomness and generated ids have no cost and no effect outside: the process's own are used if none is
   recorded.

A continuation (`Continued`) is a child of a run. It continues the run's own work after one of its steps. A fork is a
copy, and its effects have their own keys. A continuation has the run's task: the keys of its effects begin with the
same task, so a write that took place in the run is not made again.

1. Steps up to `at` are the parent's. They are not run again.
2. After it, arguments are those of the patch, as in a fork.
3. Until the continuation writes for the first time, an equal request gets the answer that it got in the proof, which is
   a fork with the same patch: what was proved is what is done. After that the world may differ, so calls are made.
4. Every other call is made.

A continuation that is killed is resumed like any run (player.Resumer).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Literal, TypeAlias

from msgspec.structs import replace

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
from refold.agents.recorder.answers import CallSite, ChildAnswers, Departure
from refold.agents.replay.call_cache import OF_THE_PROCESS, RecordedCalls
from refold.agents.replay.patch import Patch, Results
from refold.agents.replay.player import CommittedSteps, Resumer
from refold.agents.replay.unrecorded import Unrecorded, request_line, unrecorded, where
from refold.avro.errors import InputError

ForkPolicy: TypeAlias = Literal["live", "recorded", "asked"]
POLICIES: tuple[ForkPolicy, ...] = ("live", "recorded", "asked")

Asker: TypeAlias = Callable[[CallSite, RecordedRequest, Unrecorded], Call | None]
"""Asks the user. It gets the call site, the request, and how the request differs from the recorded one. It returns the
answer, or None: make the call."""


class NotAllowed(Departure):
    """A fork reached a write that was not allowed by name, and has no recorded result.

    Args:
        is_confined: Whether the kernel prevents every write, so that it could not be allowed.

    Attributes:
        tool: The name by which the write is allowed.
    """

    def __init__(self, site: CallSite, request: RecordedRequest, *, is_confined: bool = False) -> None:
        self.site = site
        self.asked = request
        self.tool = allowed_as(request)
        answered = f"say what it is answered with (--result {site.step}/{request.name}=JSON)"
        allowed = f'allow it by name (--allow {self.tool}, or allow=["{self.tool}"]), or {answered}'
        super().__init__(
            f"{where(site)} of this fork came to {request_line(request)}, which writes and has no recorded result: "
            f"{f'{answered}; a confined fork writes nothing' if is_confined else allowed}"
        )


class ForkAnswers:
    """The answers of a fork of `parent` that diverges after its step `at` (0: before the first)."""

    makes_every_call = False

    def __init__(
        self,
        parent: Recording,
        at: int,
        patch: Patch,
        policy: ForkPolicy = "live",
        *,
        allow: Collection[str] = (),
        ask: Asker | None = None,
        is_confined: bool = False,
        stand_ins: Mapping[str, Plain] | None = None,
    ) -> None:
        """Prepare the answers of a fork.

        Args:
            parent: The parent's recording.
            at: The number of the parent's step.
            patch: The changes.
            policy: How calls after the fork are answered.
            allow: Names of the tools that may write; "observe" for observations.
            ask: For the policy `asked`.
            is_confined: Whether the kernel confines this process, so that nothing could be allowed.
            stand_ins: The answers of write tools, by name, to calls that have no recorded answer. A recorded failure is
                no answer then.

        Raises:
            InputError: There is no such step, it is not committed, or the patch has a result that no call can get.
        """
        committed = [step.number for step in parent.steps if step.is_committed]
        if at not in (0, *committed):
            last = max(committed, default=0)
            raise InputError(f"run {parent.run} cannot be forked at step {at}: its committed steps end at {last}")
        if policy not in POLICIES or (policy == "asked" and ask is None):
            raise InputError(f"a fork's policy is one of {', '.join(POLICIES)} (asked: interactively)")
        self._parent = parent
        self._committed = CommittedSteps(parent, at)
        self._recorded = RecordedCalls(parent, "run", after=at)
        self._results = Results(patch, at, parent.steps)
        self._patch = patch
        self._at = at
        self._policy = policy
        self._allow = frozenset(allow)
        self._ask = ask
        self._is_confined = is_confined
        self._stand_ins = stand_ins or {}
        self._departure: Departure | None = None

    @property
    def departure(self) -> Departure | None:
        """The first request or operation that was refused."""
        return self._departure or self._committed.departure

    def keys(self, site: CallSite) -> Collection[str]:
        """Return no keys: a fork's effects have keys of their own."""
        return ()

    def depart(self, departure: Departure) -> None:
        """End the run with this departure, unless it departed before."""
        self._departure = self._departure or departure

    def step(self, number: int, name: str) -> Step | None:
        """Return the parent's step, or None after the fork."""
        self._require()
        return self._committed.step(number, name) if number <= self._at else None

    def begun(self, number: int) -> tuple[Attempt, ...]:
        """Return the parent's attempts; a fork's own steps begin from the first attempt."""
        return self._committed.begun(number) if number <= self._at else ()

    def arguments(self, number: int, kind: Kind, name: str) -> Mapping[str, Plain]:
        """After the fork, return the patch's arguments for calls of that name, over those for every model call. Before
        it, those with which the parent's step was recorded."""
        if number > self._at:
            return self._patch.arguments_of(kind, name)
        return self._committed.arguments(number, kind, name)

    def call(self, site: CallSite, request: RecordedRequest) -> Call | None:
        """As the steps above say."""
        self._require()
        if site.step <= self._at:
            return self._committed.call(site, request)
        if request.kind == "run":
            return self._recorded.take(site, request)
        result = self._results.take(site, request)
        if result is not None:
            return Call(asked=request, answer=result.answer, failure=result.failure, source="recorded")
        if writes(request):
            return self._write_answer(site, request)
        if self._policy == "live" or request.kind in OF_THE_CODE:
            return None
        return self._recorded.take(site, request) or self._without(site, request)

    def within(self, site: CallSite, head: Recording, found: Call | None) -> ChildAnswers:
        """Return the answers of a nested run.

        One from before the fork is answered by its recording. One after it follows this policy; its recording also
        answers if the parent's steps after the fork began it with the same input.
        """
        self._require()
        if site.step <= self._at:
            return self._committed.within(head, found)
        child = head if found is None else self._parent.children.get(child_of(found), head)
        answers = ForkAnswers(
            child, 0, self._patch.arguments_alone, self._policy, allow=self._allow, ask=self._ask,
            is_confined=self._is_confined, stand_ins=self._stand_ins,
        )  # fmt: skip
        return ChildAnswers(answers, child)

    def _write_answer(self, site: CallSite, request: RecordedRequest) -> Call | None:
        is_allowed = allowed_as(request) in self._allow
        if is_allowed and self._policy == "live":
            return None
        found = self._recorded.take(site, request)
        if request.kind == "tool" and request.name in self._stand_ins and (found is None or found.failure is not None):
            return Call(asked=request, answer=self._stand_ins[request.name], source="recorded")
        if found is not None or is_allowed:
            return found
        if self._policy == "asked" and (answer := self._ask_for_answer(site, request)) is not None:
            return answer
        return self._depart(NotAllowed(site, request, is_confined=self._is_confined))

    def _without(self, site: CallSite, request: RecordedRequest) -> Call | None:
        if request.kind in OF_THE_PROCESS:
            return None
        if self._policy == "asked":
            return self._ask_for_answer(site, request)
        return self._depart(unrecorded(self._recorded, site, request))

    def _ask_for_answer(self, site: CallSite, request: RecordedRequest) -> Call | None:
        assert self._ask is not None
        return self._ask(site, request, unrecorded(self._recorded, site, request))

    def _require(self) -> None:
        if self.departure is not None:
            raise self.departure

    def _depart(self, departure: Departure) -> Call | None:
        self._departure = departure
        raise departure


def writes(request: RecordedRequest) -> bool:
    """Return whether a request changes something outside of the run: an observation, or a tool that may write."""
    return request.kind == "observe" or (request.kind == "tool" and request.effect != "read")


def allowed_as(request: RecordedRequest) -> str:
    """Return the name under which a request is allowed."""
    return "observe" if request.kind == "observe" else request.name


class Continued(Resumer):
    """The answers of a continuation of `parent` after its step `at`."""

    def __init__(self, head: Recording, parent: Recording, at: int, proof: Recording | None) -> None:
        """Prepare the answers.

        Args:
            head: The head of the continuation.
            parent: The run that continues.
            at: The number of its last step that is kept; 0: none.
            proof: The fork in which the same was tried.

        Raises:
            InputError: There is no such step, or it is not committed.
        """
        committed = [step.number for step in parent.steps if step.is_committed]
        if at not in (0, *committed):
            last = max(committed, default=0)
            raise InputError(f"run {parent.run} cannot go on after step {at}: its committed steps end at {last}")
        super().__init__(replace(head, steps=parent.steps[:at], children=parent.children))
        self._proved = None if proof is None else RecordedCalls(proof, "run", after=at)
        self._has_written = False

    def call(self, site: CallSite, request: RecordedRequest) -> Call | None:
        """As the steps above say."""
        found = super().call(site, request)
        if found is not None or site.step <= self._at or request.kind in OF_THE_CODE:
            return found
        if request.kind == "run" or writes(request):
            self._has_written = True
        if self._has_written or self._proved is None:
            return None
        return self._proved.take(site, request)
