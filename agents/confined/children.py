"""Nested runs of a confined fork: their code runs in the confined process, and their record is written outside of
it."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from refold.agents.confined.journal import ChildBegun, JournalSink, Line, OfChild
from refold.agents.journal.record import Recording
from refold.agents.recorder.answers import Within
from refold.agents.recorder.children import ChildCall, RunOptions
from refold.agents.recorder.run import Run
from refold.agents.recorder.run_backend import Nondeterminism
from refold.agents.redaction.redactor import Redact
from refold.agents.replay.memory_runs import Fields, Reading, in_memory


class JournalChildren:
    """Creates the nested runs of one run of a confined fork. See recorder/children.py."""

    def __init__(
        self, head: Recording, say: Callable[[Line], None], fields: Fields, redact: Redact, chance: Nondeterminism
    ) -> None:
        """head: of the run that they begin in."""
        self._head = head
        self._say = say
        self._fields = fields
        self._redact = redact
        self._chance = chance

    def require_log(self, url: str) -> None:
        """Any will do: the process reaches none."""

    def begin(self, head: Recording, given: RunOptions, within: Within, call: ChildCall) -> Run:
        """As Children: in memory where it ended before the fork."""
        if within.is_whole and within.recording is not None:
            redact = self._redact if within.recording.redacted else None
            return in_memory(within.recording, within.answers, self._fields, redact, None, call=call).run
        parent = self._head
        head = replace(
            head, kind=head.kind or parent.kind, user=head.user or parent.user, redacted=parent.redacted,
            started_at=self._chance.now_micros(),
        )  # fmt: skip
        self._say(ChildBegun(head, given))
        return Run(
            head, answers=within.answers, sink=JournalSink(lambda line: self._say(OfChild(head.run, line))),
            reach=Reading(self._fields), redact=self._redact, chance=self._chance, strays=given.strays,
            children=JournalChildren(head, self._say, self._fields, self._redact, self._chance), call=call,
        )  # fmt: skip
