"""What changed code is answered with: whatever was recorded of the same request, wherever in the run it was asked.

For code that was mended and does other things than were recorded. In this order:

1. An equal request: of the same attempt of the same step, then of any, in their order; each recorded call once.
2. Clock, randomness and ids go on from what was recorded, the same in each replay.
3. An equal request that was answered already: what it was answered last. What is asked again has not changed.
4. What the golden trace says that this tool or model answers to what was not recorded (`answers`).
5. An observation that was not recorded is not made, and gets an id that follows from it.
6. A run within that was begun with something else is answered, in this way, by one that was recorded of its agent.
7. Anything else is Unrecorded. Above all a tool that writes: it is never run, and nothing says what it would answer.
"""

from __future__ import annotations

from collections.abc import Iterable

from refold.agents.golden.file import DefaultAnswer
from refold.agents.journal.record import Attempt, Call, RecordedRequest, Recording
from refold.agents.replay.patch import NO_PATCH, Patch
from refold.agents.replay.player import Replayer


class Lenient(Replayer):
    """Answers for code that may have changed. departure: the first call that nothing answers."""

    def __init__(
        self, recording: Recording, answers: Iterable[DefaultAnswer] = (), *, arguments: Patch = NO_PATCH
    ) -> None:
        super().__init__(recording, "run", arguments=arguments)
        self._answers = {each.name: each.answer for each in answers}

    def begun(self, number: int) -> tuple[Attempt, ...]:
        """None: each step is tried anew, also where the recorded run did not get so far."""
        self._require()
        return ()

    def _in_place_of(self, asked: RecordedRequest) -> Call | None:
        made_up = super()._in_place_of(asked)
        if made_up is not None:
            return made_up
        if asked.kind == "run":
            return self._run_in_place_of(asked)
        same = self._recorded.same(asked)
        if same:
            return same[-1].call
        if asked.kind in ("tool", "model") and asked.name in self._answers:
            return Call(asked=asked, answer=self._answers[asked.name], source="recorded")
        return Call(asked=asked, answer=asked.hash, source="recorded") if asked.kind == "observe" else None

    def _run_in_place_of(self, asked: RecordedRequest) -> Call | None:
        """A run within that was begun so, else the first of that agent that did not answer yet."""
        same = self._recorded.same(asked)
        if same:
            return same[-1].call
        runs = [(at, served) for at, served in self._recorded.all() if at.call.asked.kind == "run"]
        named = [(at, served) for at, served in runs if at.call.asked.name == asked.name]
        free = [at for at, served in named if not served] or [at for at, _ in named]
        return free[0].call if free else None

    def _replaying(self, child: Recording, patch: Patch) -> Replayer:
        return Lenient(child, [DefaultAnswer(*each) for each in self._answers.items()], arguments=patch)
