"""The part of the log that refold.open returns which reads recorded runs: lists, comparisons, questions and effects."""

from __future__ import annotations

import datetime as dt
import os
from functools import cached_property
from typing import TYPE_CHECKING

from refold.streams.client import Log
from refold.streams.point import When

# As in log.py, the modules that runs need are imported on first use.
if TYPE_CHECKING:
    from refold.agents.compare.divergence import Divergence
    from refold.agents.effects.ledger import Ledger
    from refold.agents.journal.record import Recording
    from refold.agents.knew import Knowledge
    from refold.agents.live import CaptureRecorder, LiveRuns
    from refold.agents.policy.decision_log import ApprovalQuestion
    from refold.agents.recordings.find import RunList
    from refold.agents.redaction.redactor import Redact, RunRedactor
    from refold.agents.vault import ValueCipher


class RecordedLog(Log):
    """A log whose recorded runs can be read. refold.open returns an AgentLog, which also begins and forks runs."""

    def recording(self, run: str, at: When = None) -> Recording:
        """Return a recorded run, now or at a point.

        Raises:
            UnknownEntity: The log has no such run.
            Expired: Its content was removed.
        """
        from refold.agents.recordings.load import load

        return load(self, run, self.vault, at)

    def runs(
        self, *, since: dt.datetime | str | None = None, until: dt.datetime | str | None = None, text: str = "",
        tool: str = "", error: str = "", outcome: str = "", agent: str = "", user: str = "", tag: str = "",
        parent: str = "", flagged: bool = False, model: str = "", usage: bool = False, further: bool = False,
        limit: int | None = None, at: When = None,
    ) -> RunList:  # fmt: skip
        """List the runs of agents, newest first, as `refold runs` does. A run must match every argument.

        Args:
            since, until: The earliest and latest start; aware datetimes or RFC 3339 text.
            text: A text in input, output, messages, calls or results.
            tool: A tool that the run called.
            error: A text in the class or message of an error that failed the run, or was retried.
            outcome: succeeded, failed, cancelled, timed_out, unknown or running.
            agent, user, tag: The run's agent, its user, and one of its tags. model: A text in a called model's name.
            parent: Only forks of this run. further: Also captures and transcripts of a run that is listed.
            usage: Add what the model calls used to each row; this reads the steps.
            limit, at: At most so many, the newest ones; as they were at a point.

        Returns:
            The runs; `unread` and `damaged` name those that could not be read.

        Raises:
            InputError: An argument is invalid.
        """
        from refold.agents.recordings.find import RunConditions, find, time_of

        wanted = RunConditions(
            time_of(since, "since"), time_of(until, "until"), agent, outcome, user, tag, parent, flagged, tool, error,
            text, model, usage, further,
        )  # fmt: skip
        return find(self, self.vault, wanted, limit, at)

    def compare(self, a: str, b: str, *, exact: bool = False) -> Divergence | None:
        """Return the first difference between two recorded runs, and its cause. See docs/COMPARE.md.

        Args:
            a, b: The ids of the runs.
            exact: Clock readings, random numbers, generated ids and points of reads count as differences too.

        Returns:
            None if they do not differ.

        Raises:
            UnknownEntity: The log has no such run.
        """
        from refold.agents.compare.compare import compare

        return compare(self.recording(a), self.recording(b), exact=exact)

    def knew(
        self, agent: str, at: When = None, *, run: str | None = None, step: int | None = None, every: bool = False
    ) -> Knowledge:
        """Return what an agent had read, compared with what the log held, and the answers it got. See docs/COMPARE.md.

        Args:
            agent: The agent's name.
            at: A position in the log, or a time: then what the agent had by then counts.
            run, step: Only in this run, or in its step with this number; by default in all runs.
            every: Return all of it, not only the latest read of each entity and the last answer to each request.
        """
        from refold.agents.knew import knew

        return knew(self, self.vault, agent, at, run=run, step=step, every=every)

    def questions(self, *, all_too: bool = False) -> list[ApprovalQuestion]:
        """Return the open questions of policies about calls of runs, oldest first.

        Args:
            all_too: Whether to return answered questions as well.
        """
        from refold.agents.policy.decision_log import questions

        return questions(self, self.vault.open, all_too=all_too)

    def answer(self, question: str, *, is_approved: bool, by: str, reason: str = "") -> None:
        """Answer a question of a policy, once.

        Args:
            question: Its id.
            is_approved: The answer.
            by: Who answers.
            reason: Why, for the record.

        Raises:
            InputError: No open question has that id.
        """
        from refold.agents.policy.decision_log import answer

        answer(self, question, self._runtime.now_micros(), is_approved=is_approved, by=by, reason=reason)

    @cached_property
    def vault(self) -> ValueCipher:
        """The vault that seals and opens the content of runs, with the log's key ring (agents/keys/choose.py)."""
        from refold.agents.keys.choose import vault_of

        return vault_of(self, os.environ)

    def close(self) -> None:
        """Flush and release the log and its key ring."""
        try:
            super().close()
        finally:
            if "vault" in self.__dict__:
                self.vault.close()

    def capturing(self, redact: Redact | None = None) -> CaptureRecorder:
        """Return an interface that records runs from outside an agent's code (agents/capture).

        Args:
            redact: As for `run`: decides which parts of a JSON tree may be written.
        """
        from refold.agents.live import CaptureRecorder

        return CaptureRecorder(self._live, lambda: self._redacting(redact), self._runtime)

    def _redacting(self, redact: Redact | None) -> RunRedactor:
        """Return the redactor of one run of this log. A Redactor without a key of its own uses the log's."""
        from refold.agents.redaction.redactor import as_of_run, for_run, unredacted

        return as_of_run(unredacted) if redact is None else for_run(redact, self._redaction_key)

    def _redaction_key(self) -> bytes:
        from refold.agents.redaction.tokens import kept_key
        from refold.agents.vault import Vault

        vault = self.vault
        return kept_key(vault.ring if isinstance(vault, Vault) else None, os.environ)

    @cached_property
    def effects(self) -> Ledger:
        """The effects of write tools: list, settle and compensate them (docs/EFFECTS.md)."""
        from refold.agents.effects.ledger import Ledger

        return Ledger(self, self._runtime.now_micros, self._runtime.new_id, keeper=self.vault)

    @cached_property
    def _live(self) -> LiveRuns:
        from refold.agents.live import LiveRuns

        return LiveRuns(self, self._runtime, self.vault)
