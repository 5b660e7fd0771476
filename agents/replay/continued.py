"""The answers of a continuation: a child of a run that goes on with the run's own work, after one of its steps.

A fork is a copy, and its effects have keys of its own. A continuation is the run's work itself, so it has the run's
task: the keys of its effects begin as the run's do, and a write that took place in the run is not made again.

1. Steps up to `at` are the parent's. They are not run again.
2. After it, arguments are those of the patch, as in a fork.
3. Until the continuation writes for the first time, an equal request gets the answer that it got in the proof, which is
   a fork with the same patch: what was proved is what is done. After that the world may differ, so calls are made.
4. Every other call is made.

A continuation that is killed is resumed like any run (player.Resumer).
"""

from __future__ import annotations

from msgspec.structs import replace

from refold.agents.journal.record import OF_THE_CODE, Call, RecordedRequest, Recording
from refold.agents.recorder.answers import CallSite
from refold.agents.replay.call_cache import RecordedCalls
from refold.agents.replay.forked import writes
from refold.agents.replay.player import Resumer
from refold.avro.errors import InputError


class Continued(Resumer):
    """The answers of a continuation of `parent` after its step `at`."""

    def __init__(self, head: Recording, parent: Recording, at: int, proof: Recording | None) -> None:
        """Prepare the answers.

        Args:
            head: The head of the continuation.
            parent: The run that goes on.
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

    def call(self, place: CallSite, asked: RecordedRequest) -> Call | None:
        """As the steps above say."""
        found = super().call(place, asked)
        if found is not None or place.step <= self._at or asked.kind in OF_THE_CODE:
            return found
        if asked.kind == "run" or writes(asked):
            self._has_written = True
        if self._has_written or self._proved is None:
            return None
        return self._proved.take(place, asked)
