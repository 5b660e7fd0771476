"""Answers for changed code: any recorded answer to the same request, from anywhere in the run.

For code that was fixed and does other things than were recorded. In this order:

1. An equal request: of the same attempt of the same step, then of any, in order; each recorded call once.
2. Clock, randomness and ids continue from the recorded ones, the same in each replay.
3. An equal request that was answered already: its last answer. A repeated request has not changed.
4. The answer in the golden trace of this tool or model to requests that were not recorded (`answers`).
5. An observation that was not recorded is not made, and gets an id derived from its content.
6. A nested run with another input is answered, in this way, by a recorded run of its agent.
7. Anything else is Unrecorded, above all a write tool: it is never run, and its answer is not known.
"""

from __future__ import annotations

from collections.abc import Iterable

from refold.agents.golden.file import DefaultAnswer
from refold.agents.journal.record import Attempt, Call, RecordedRequest, Recording
from refold.agents.replay.patch import NO_PATCH, Patch
from refold.agents.replay.player import Replayer


class LenientAnswers(Replayer):
    """Answers for code that may have changed. departure: the first call without an answer."""

    def __init__(
        self, recording: Recording, answers: Iterable[DefaultAnswer] = (), *, arguments: Patch = NO_PATCH
    ) -> None:
        super().__init__(recording, "run", arguments=arguments)
        self._answers = {each.name: each.answer for each in answers}

    def begun(self, number: int) -> tuple[Attempt, ...]:
        """Return none: each step is tried from the first attempt, also if the recorded run did not get so far."""
        self._require()
        return ()

    def _replacement_call(self, request: RecordedRequest) -> Call | None:
        made_up = super()._replacement_call(request)
        if made_up is not None:
            return made_up
        if request.kind == "run":
            return self._replacement_run(request)
        same = self._recorded.same(request)
        if same:
            return same[-1].call
        if request.kind in ("tool", "model") and request.name in self._answers:
            return Call(asked=request, answer=self._answers[request.name], source="recorded")
        return Call(asked=request, answer=request.hash, source="recorded") if request.kind == "observe" else None

    def _replacement_run(self, request: RecordedRequest) -> Call | None:
        """Return the recorded nested run with this input, else the first of that agent that did not answer yet."""
        same = self._recorded.same(request)
        if same:
            return same[-1].call
        runs = [(at, served) for at, served in self._recorded.all() if at.call.asked.kind == "run"]
        named = [(at, served) for at, served in runs if at.call.asked.name == request.name]
        free = [at for at, served in named if not served] or [at for at, _ in named]
        return free[0].call if free else None

    def _child_replayer(self, child: Recording, patch: Patch) -> Replayer:
        return LenientAnswers(child, [DefaultAnswer(*each) for each in self._answers.items()], arguments=patch)
