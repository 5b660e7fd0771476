"""Healing by a supervisor: what the owner of an agent (agents/supervise/owner.py) does about a run that failed.

1. The agent's process has failed, its restart policy does not start it again, and refold.toml has remedies for it. Or a
   policy denied a call of its run, so that another start would be denied, too. The owner records `failed`, and that its
   run is to be healed (`heals`).
2. It records `healing`, and starts `refold heal RUN --apply` in place of the agent's command: with the same variables,
   in the same containment, kept by the same keeper. So a killed supervisor ends the healing as well, and at most one
   process runs the agent's code.
3. That process records its attempts (apply.py), and ends. The newest attempt says what follows:
   healed     the run, or its continuation, has succeeded: `ended`
   failed     the run that continues failed: it is the agent's run now, and is healed next (1)
   rejected   another remedy may be left: 2
   waiting    a person is asked: `asking`. After the answer: 2
   stopped    `failed`, with the reason; nobody heals it any more
   none, or one that has not ended: the process was killed, or failed itself. 2 after a while, at most CRASHES_MAX times
4. A process that finds the run being healed by another one ends with ELSEWHERE (lease.py): 2 after a while.

Killed in any of these: the owner's successor finds `heals` set. If the newest attempt has healed the run, or led to a
continuation that failed, 3 says what follows. Otherwise it continues with 2, which continues the open attempt. The same
holds after a stop, and if another process healed the run meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from refold.agents.entry import class_name
from refold.agents.heal.healings import Healing, healings
from refold.agents.heal.lease import ELSEWHERE
from refold.agents.log import AgentLog
from refold.agents.policy.decision import PolicyDenied
from refold.agents.policy.decision_log import approval_of
from refold.agents.supervise.lease import ObservedState
from refold.avro.errors import CorruptionError, InputError

if TYPE_CHECKING:
    from refold.agents.supervise.settings import AgentSettings

CRASHES_MAX = 3
_LOOK_S = 1.0


class HealingKind(NamedTuple):
    """The key by which attempts are counted; its members are the labels of the metric.

    Attributes:
        finding: The kind of the finding.
        remedy: The remedy's name.
        status: The status in which the attempts ended.
    """

    finding: str
    remedy: str
    status: str


class AgentHealing:
    """The healings of one agent, for its owner. For the log's thread."""

    def __init__(
        self, log: AgentLog, settings: AgentSettings, command: Sequence[str], now_micros: Callable[[], int],
        clock_s: Callable[[], float],
    ) -> None:  # fmt: skip
        """Prepare.

        Args:
            log: The log.
            settings: The agent.
            command: Heals a run by the agent's remedies, up to the agent's name and the run's id.
            now_micros: The clock of what is recorded.
            clock_s: The clock of intervals.
        """
        self._log = log
        self._settings = settings
        self._command = command
        self._now_micros = now_micros
        self._clock_s = clock_s
        self._before: frozenset[str] = frozenset()
        self._looked_s = 0.0
        self._question: Healing | None = None
        self.counts: Mapping[HealingKind, int] = Counter()

    def settings_for(self, run: str) -> AgentSettings:
        """Return the agent's settings with the command that heals a run of it."""
        self._before = frozenset(each.id for each in healings(self._log, run) if not each.is_open)
        self._question = None
        return msgspec.structs.replace(self._settings, command=(*self._command, self._settings.name, run))

    def after(self, observed: ObservedState, exit_status: int | None, failure: str) -> ObservedState:
        """Return the agent's status after the end of a process that healed its run (step 3).

        Args:
            observed: The status before, without the process.
            exit_status: Of the process; None if it could not be started.
            failure: Why it could not.
        """
        attempts = healings(self._log, observed.run)
        self._count(each for each in attempts if not each.is_open and each.id not in self._before)
        failed = observed._replace(status="failed", exit_status=exit_status)
        now = self._now_micros()
        if exit_status == ELSEWHERE:
            wait = int(self._settings.backoff_after(1) * 1e6)
            return failed._replace(why="another process heals its run", restart_at=now + wait)
        last = attempts[-1] if attempts else None
        if last is None or (last.id in self._before and last.status != "stopped"):
            return self._status_after_crash(failed, exit_status, failure)
        if last.status == "healed":
            why = f"its run was healed by the remedy {last.remedy!r}: {last.reason}"
            done = failed._replace(status="ended", why=why, run=last.healed_by, heals=0, failures=0)
            if self._settings.restart != "always":
                return done
            return done._replace(status="waiting", run="", restart_at=now + int(self._settings.backoff_s * 1e6))
        if last.status == "waiting":
            self._question = last
            return failed._replace(status="asking", why=last.reason, heals=1)
        if last.status == "failed":
            return failed._replace(why=f"not healed yet: {last.reason}", run=last.healed_by, heals=1)
        if last.status == "rejected":
            return failed._replace(why=f"not healed yet: {last.reason}", heals=1)
        if last.status == "stopped":
            return failed._replace(why=f"not healed: {last.reason}", heals=0)
        return self._status_after_crash(failed, exit_status, failure)

    def known_result(self, observed: ObservedState) -> ObservedState | None:
        """Return the agent's status after an attempt that ended its healing, and that no owner has recorded yet.

        Args:
            observed: The status before, without a process.

        Returns:
            None if the run is still to be healed.
        """
        attempts = healings(self._log, observed.run)
        last = attempts[-1] if attempts else None
        goes_on = last is not None and last.status == "failed" and last.healed_by != observed.run
        if last is None or not (last.status == "healed" or goes_on):
            return None
        self._before = frozenset(each.id for each in attempts[:-1])
        return self.after(observed, None, "")

    def _status_after_crash(self, failed: ObservedState, exit_status: int | None, failure: str) -> ObservedState:
        """Return the status after a process that came to no result."""
        how = failure or f"it exited with {exit_status}"
        if failed.heals >= CRASHES_MAX:
            return failed._replace(why=f"not healed: healing came to no result {failed.heals} times: {how}", heals=0)
        wait = int(self._settings.backoff_after(failed.heals) * 1e6)
        return failed._replace(
            why=f"healing came to no result: {how}", heals=failed.heals + 1, restart_at=self._now_micros() + wait
        )

    def is_answered(self, run: str) -> bool:
        """Return whether the question about a run is answered. It is looked up once a second."""
        if self._clock_s() < self._looked_s + _LOOK_S:
            return False
        self._looked_s = self._clock_s()
        if self._question is None:  # an earlier owner asked
            self._question = next((each for each in healings(self._log, run) if each.status == "waiting"), None)
        approval = None if self._question is None else approval_of(self._log, self._question.question)
        return self._question is None or (approval is not None and approval.decision in ("approved", "rejected"))

    def _count(self, ended: Iterable[Healing]) -> None:
        found = (HealingKind(each.failure.partition(" ")[0], each.remedy, each.status) for each in ended)
        self.counts = Counter(self.counts) + Counter(found)  # a new one: another thread reads the old one


def is_denied(log: AgentLog, run: str) -> bool:
    """Return whether a policy denied the call with which a run failed.

    Args:
        log: The log.
        run: The id of a run that failed.
    """
    try:
        failure = log.recording(run).failure
    except (InputError, CorruptionError):  # its content is gone, no key here opens it, or it is damaged
        return False
    return failure is not None and failure.exception == class_name(PolicyDenied)
