"""An agent whose run ended because a rule of its policy asks a person: it is started again when it can continue.

1. Its process ends. Its run failed with ApprovalNeeded, which names the question. The owner records `asking`: no
   process waits, and no restart is tried that would end at the same question.
2. The owner looks at the question once a second. If it is answered, or its time is over, the owner records `waiting`,
   and the run is resumed: the call is made, or denied.

Killed in between: the status and the run are in the log, so the next owner continues with 2.
"""

from __future__ import annotations

from collections.abc import Callable

from refold.agents.entry import class_name
from refold.agents.log import AgentLog
from refold.agents.policy.decision import ApprovalNeeded
from refold.agents.policy.decision_log import approval_of
from refold.avro.errors import CorruptionError, InputError

_LOOK_S = 1.0


class AwaitedApproval:
    """The question at which the run of one agent waits. For the log's thread."""

    def __init__(self, log: AgentLog, now_micros: Callable[[], int], clock_s: Callable[[], float]) -> None:
        """Prepare.

        Args:
            log: The log.
            now_micros: Returns the time, microseconds, by the clock of what is recorded.
            clock_s: Returns the time of a clock of intervals, seconds.
        """
        self._log = log
        self._now_micros = now_micros
        self._clock_s = clock_s
        self._looked_s = 0.0
        self._known = ("", "")

    def question_of(self, run: str) -> str:
        """Return the id of the question with which a failed run ended; empty if it failed otherwise."""
        try:
            failure = self._log.recording(run).failure
        except (InputError, CorruptionError):  # its content is gone, no key here opens it, or it is damaged
            return ""
        if failure is None or failure.exception != class_name(ApprovalNeeded):
            return ""
        question = ApprovalNeeded.question_in(failure.message)
        self._known = run, question
        return question

    def is_over(self, run: str) -> bool:
        """Return whether the question is answered, or can be answered no more. It is looked up once a second."""
        if self._clock_s() < self._looked_s + _LOOK_S:
            return False
        self._looked_s = self._clock_s()
        question = self._known[1] if self._known[0] == run else self.question_of(run)
        approval = approval_of(self._log, question) if question else None
        if approval is None or approval.decision != "requested":
            return True
        return 0 < approval.expires_at < self._now_micros()
