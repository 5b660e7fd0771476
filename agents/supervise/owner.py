"""One supervisor's part in one agent: become its owner, stay it, run the agent's process, and lose it.

Every act is durable in the log before the next step. An owner acts only until `until`: the moment at which it began its
last renewal that counts, plus ACTING_SHARE of the lease. The clock counts sleep.

1. Follow. Read the agent's records. A claim that is open and whose last beat was first seen here less than a lease ago
   (by this machine's own clock) is its owner's. Otherwise
2. request the agent (lease.py). Read again: denied, back to 1. Granted: this supervisor is the owner.
3. Record the new owner and, in the same observation, `unknown` if the record says that a process may exist: that
   process's owner is gone. So no reader sees an earlier owner's status as one of this owner.
4. Start: record `starting` with the attempt and the run;
5. start a keeper (keeper.py), which may run the agent until `until`;
6. the keeper says `started`: record `running` with host, boot, process id and its start.
7. Renew after each third of the lease: record the next beat, read it back, and only if this claim is still the last
   one let the keeper continue until the new `until`.
8. The keeper ends: record `ended`, `failed`, `waiting` or `stopped`. Then 4, or nothing until a request.
9. Lose: `until` is over, or another claim was granted. Record nothing more. Kill the agent, wait until its keeper is
   gone, and continue with 1.
10. End (SIGTERM): stop the agent, record `stopped`, release the claim. Another supervisor has it at once.

Transitions, each a recorded status: starting, running, pausing, paused, stopping, stopped, waiting, failed, ended,
unknown; healing and asking are those of agents/heal/supervised.py and awaited.py. Acts: a claim, its grant, its
renewal and release; a keeper's start, more time for it, its stop; the gate closed, and opened.
tests/agents/supervise/test_transitions.py kills a supervisor before and after each, the agent at each status that has a
process, and the keeper after each of its steps.

Killed
    in 1:            nothing was recorded.
    between 2 and 3: the claim is open, and no owner is recorded; readers see the earlier one, whose lease is over.
    between 3 and 4: the claim is open; the next owner has it after the lease. No process exists, and none is recorded.
    between 4 and 5: `starting` says that a process may exist; after the lease it is shown as unknown, then 3.
    between 5 and 8: the keeper sees its input end, and kills the agent. `running` is shown as unknown once the lease is
                     over. The next owner does 3; on this machine its keeper also waits for the lock of the old one.
    between 8 and 4: the status is true; the next owner continues from it, with the rest of the wait.
    between 9 and 1: the keeper sees its input end.
    in 10:           as between 5 and 8, or after 8.

Stopped (SIGSTOP) past the lease and continued: the keeper has killed the agent at `until`, before anybody else could
own the agent. What follows is 9: `until` is checked before the log is read, and again before each act. It may also be
stopped between such a check and the act. Then its record has the older term, and no reader counts it. It kills what a
keeper left only while it holds the agent's lock, so no process of the next owner. It may still close or open the gate
of the next owner's process on the same machine: these microseconds are not guarded. A log that cannot be reached is
the same: no renewal, so 9.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from refold.agents.heal.supervised import AgentHealing, is_denied
from refold.agents.log import AgentLog
from refold.agents.supervise.awaited import AwaitedApproval
from refold.agents.supervise.entries import AgentEntries, OwnedEntries
from refold.agents.supervise.gate import PauseGate, gate_folder
from refold.agents.supervise.keeper import KeeperOrder
from refold.agents.supervise.kept_process import KeptProcess
from refold.agents.supervise.launch import launch_of
from refold.agents.supervise.lease import (
    ACTING_SHARE,
    ACTIVE,
    RENEWING_SHARE,
    AgentRecord,
    DesiredState,
    ObservedState,
)
from refold.agents.supervise.machine import Deed, NextMove, ProcessView, needs_outcome, next_move
from refold.agents.supervise.machine_processes import boot_id
from refold.agents.supervise.settings import AgentSettings
from refold.agents.supervise.supervised import GATE
from refold.avro.errors import InputError


class SupervisorSettings(NamedTuple):
    """A supervisor as its owners know it.

    Attributes:
        name: Its name as it is recorded, user@host/pid.
        host: The name of its machine.
        log_url: The log's URL as agents get it.
        folder: The folder under which each agent has one.
        environment: Its environment variables.
        capture_command: The command that runs a program whose model calls are captured, up to its options.
        now_micros: Returns the time that is recorded, in microseconds since 1970.
        clock_s: Returns the time of a clock that counts sleep, in seconds.
        new_id: Returns a unique text at each call.
        say: Called with a line for the operator.
        heal_command: The command that heals a run, up to the agent's name and the run's id.
    """

    name: str
    host: str
    log_url: str
    folder: Path
    environment: Mapping[str, str]
    capture_command: Sequence[str]
    lease_ms: int
    now_micros: Callable[[], int]
    clock_s: Callable[[], float]
    new_id: Callable[[], str]
    say: Callable[[str], None]
    heal_command: Sequence[str] = ()


class OwnerCounts(NamedTuple):
    """How often an owner started a process, saw one fail, and lost the agent."""

    starts: int = 0
    failures: int = 0
    losses: int = 0


class AgentOwner:
    """One agent of a supervisor. For the log's thread."""

    def __init__(self, log: AgentLog, settings: AgentSettings, by: SupervisorSettings) -> None:
        self._log = log
        self._settings = settings
        self._by = by
        self._entries = AgentEntries(log, by.now_micros)
        self._record = AgentRecord()
        self._seen = ("", -1, 0.0)
        self._mine: OwnedEntries | None = None
        self._until_s = 0.0
        self._renewed_s = 0.0
        self._process: KeptProcess | None = None
        self._folder = by.folder / settings.name
        self._gate = PauseGate(gate_folder(self._folder))
        self._is_ending = False
        self._not_started = ""
        self.counts = OwnerCounts()
        self._awaited = AwaitedApproval(log, by.now_micros, by.clock_s)
        self.healing = AgentHealing(log, settings, by.heal_command, by.now_micros, by.clock_s)

    def tick(self) -> None:
        """Do what is due.

        Raises:
            RefoldError: The log failed. The next call tries again, or gives the agent up.
        """
        self._lose_if_over()
        record = self._record = self._entries.read(self._settings.name, self._record)
        if self._mine is not None and not self._is_owner(record):
            self._lose(f"{record.owner} owns it now")
        if self._mine is None:
            self._follow(record)
        if self._mine is not None:
            self._renew(self._mine)
        self._lose_if_over()  # reading, claiming or renewing may have taken until then
        if self._mine is not None:
            self._move(self._mine, self._record)

    def end(self) -> bool:
        """Do the next step of ending. Return whether this supervisor has done with the agent.

        Raises:
            RefoldError: The log failed, and the agent has no process here any more.
        """
        self._is_ending = True
        if self._process is not None:
            try:
                self.tick()
            except BaseException:
                self._process.kill()
                if self._process.is_gone:
                    self._process = None
                raise
            return False
        if self._mine is not None:
            if self._by.clock_s() < self._until_s:
                self._record = self._entries.read(self._settings.name, self._record)
                if self._is_owner(self._record):
                    self._mine.release(self._record)
            self._mine = None
        return True

    @property
    def is_done(self) -> bool:
        """Whether the agent has nothing to do until somebody requests something."""
        record = self._record
        is_at_rest = record.observed.status in ("ended", "stopped") or self.has_failed
        return is_at_rest and self._process is None and record.observed.handled == record.desired.number

    @property
    def is_owned(self) -> bool:
        """Whether this supervisor owns the agent."""
        return self._mine is not None

    @property
    def status(self) -> str:
        """The agent's status when its records were last read. An agent that failed and is to be healed is `healing`."""
        status = self._record.observed.status or "new"
        return "healing" if status == "failed" and not self.has_failed else status

    @property
    def has_failed(self) -> bool:
        """Whether the agent failed, and is neither started again nor healed."""
        return self._record.observed.status == "failed" and not self._record.observed.heals

    # Ownership

    def _is_owner(self, record: AgentRecord) -> bool:
        return self._mine is not None and record.is_open and record.token == self._mine.token

    def _follow(self, record: AgentRecord) -> None:
        """Steps 1 to 3."""
        if self._process is not None:
            if not self._process.is_gone:
                return
            self._process.close()
            self._process = None
        if self._is_ending or self._is_anothers(record):
            return
        began_s = self._by.clock_s()
        token = f"{self._by.name}:{self._by.new_id()}"
        mine = OwnedEntries(
            self._log, self._by.now_micros, self._settings.name, token, self._by.name, self._by.lease_ms
        )  # fmt: skip
        mine.claim(record)
        record = self._entries.read(self._settings.name, record)
        if record.token != token:
            return
        self._mine = mine
        self._acts_from(began_s)
        gone = None
        if record.observed.status in ACTIVE:
            gone = record.observed._replace(status="unknown", why="its owner is gone", pid=0, process_start=0, boot="")
        mine.granted(record, self._settings, gone)
        self._by.say(f"{self._settings.name}: owned by this supervisor, term {record.term}")
        if gone is not None:
            self._by.say(f"{self._settings.name}: {gone.status}: {gone.why}")
        self._record = self._entries.read(self._settings.name, record)

    def _is_anothers(self, record: AgentRecord) -> bool:
        """Return whether an open claim may still be in use, by how long ago its last beat was first seen here."""
        now = self._by.clock_s()
        if self._seen[:2] != (record.token, record.beat):
            self._seen = record.token, record.beat, now
        return record.is_open and now < self._seen[2] + record.lease_ms / 1000

    def _acts_from(self, began_s: float) -> None:
        """Set until when this owner may act, from when it began the act that counts."""
        self._renewed_s = began_s
        self._until_s = began_s + ACTING_SHARE * self._by.lease_ms / 1000

    def _renew(self, mine: OwnedEntries) -> None:
        """Step 7."""
        began_s = self._by.clock_s()
        if began_s < self._renewed_s + RENEWING_SHARE * self._by.lease_ms / 1000:
            return
        beat = self._record.beat + 1
        mine.renew(self._record)
        record = self._record = self._entries.read(self._settings.name, self._record)
        if not self._is_owner(record) or record.beat != beat:
            return self._lose(f"{record.owner} owns it now")
        self._acts_from(began_s)
        if self._process is not None:
            self._process.extend(self._until_s)

    def _lose_if_over(self) -> None:
        if self._mine is not None and self._by.clock_s() >= self._until_s:
            self._lose("its lease is over")

    def _lose(self, why: str) -> None:
        """Step 9."""
        self._by.say(f"{self._settings.name}: given up: {why}")
        self.counts = self.counts._replace(losses=self.counts.losses + 1)
        self._mine = None
        if self._process is not None:
            self._process.kill()

    # The process

    def _move(self, mine: OwnedEntries, record: AgentRecord) -> None:
        """Steps 4 to 8."""
        process = ProcessView(failure=self._not_started)
        if self._process is not None:
            process = self._process.view()._replace(is_at_gate=self._gate.is_reached)
        if not record.desired.what:
            self._entries.request(self._settings.name, "running", self._by.name, "it is declared")
            return
        if self._is_ending:
            ending = DesiredState("stopped", record.desired.number, "its supervisor", "the supervisor ends")
            record = dataclasses.replace(record, desired=ending)
        move = self._next_move(record, process)
        if move.deed is Deed.START:
            assert move.observed is not None
            return self._start(mine, record, move.observed)
        if move.observed is not None:
            self._record_status(mine, record, move.observed)
        self._not_started = ""
        if self._process is None or self._by.clock_s() >= self._until_s:
            return
        if not process.is_there:
            self._process.close()
            self._process = None
        elif move.deed is Deed.STOP:
            self._process.stop(self._settings.stop_s)
        elif move.deed is Deed.HOLD:
            self._gate.close()
        elif move.deed is Deed.LET_GO:
            self._gate.open()

    def _next_move(self, record: AgentRecord, process: ProcessView) -> NextMove:
        observed = record.observed
        at_rest = observed._replace(pid=0, process_start=0, boot="", restart_at=0, handled=record.desired.number)
        has_ended = process.exit_status is not None or bool(process.failure)
        if observed.status == "healing" and has_ended:
            return NextMove(observed=self.healing.after(at_rest, process.exit_status, process.failure))
        if observed.status == "asking" and not observed.heals:
            if record.desired.what == "running" and self._awaited.is_over(observed.run):
                now, why = self._by.now_micros(), "the question about its run is answered, or its time is over"
                return NextMove(observed=observed._replace(status="waiting", why=why, restart_at=now))
        elif observed.status == "asking" and self.healing.is_answered(observed.run):
            return NextMove(observed=observed._replace(status="failed", why="the question about its run is answered"))
        outcome = self._outcome(record) if needs_outcome(record, process) else ""
        move = next_move(record, process, self._settings, self._by.now_micros(), outcome)
        if move.deed is Deed.START and move.observed is not None and move.observed.status == "healing":
            known = self.healing.known_result(at_rest)
            return move if known is None else NextMove(observed=known)
        return move

    def _start(self, mine: OwnedEntries, record: AgentRecord, observed: ObservedState) -> None:
        """Steps 4 and 5."""
        settings = self._settings
        if settings.resume and not observed.run:
            observed = observed._replace(run=f"{settings.name}-{self._by.new_id()[:12]}")
        try:
            order = self._order(observed)
        except InputError as error:
            return self._record_status(mine, record, observed._replace(
                status="failed", why=str(error), attempt=observed.attempt - 1, failures=observed.failures + 1, heals=0
            ))  # fmt: skip
        self._record_status(mine, record, observed._replace(host=self._by.host))
        if self._by.clock_s() >= self._until_s:
            return
        try:
            self._process = KeptProcess(order._replace(until_s=self._until_s))
        except OSError as error:
            self._not_started = f"no process can be started: {error.strerror or error}"
        else:
            self.counts = self.counts._replace(starts=self.counts.starts + 1)

    def _order(self, observed: ObservedState) -> KeeperOrder:
        is_healing = observed.status == "healing"
        settings = self.healing.settings_for(observed.run) if is_healing else self._settings
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        gate_folder(self._folder).mkdir(exist_ok=True, mode=0o700)
        self._gate.open()
        run = "" if is_healing else observed.run
        launch = launch_of(
            settings, self._by.log_url, self._by.environment, self._by.capture_command, self._folder, run
        )  # fmt: skip
        environment = {**launch.environment, GATE: str(gate_folder(self._folder))}
        folder = str(self._folder)
        return KeeperOrder(
            launch.command, environment, settings.work, folder, folder, 0.0, settings.output_mb << 20, launch.contained
        )

    def _outcome(self, record: AgentRecord) -> str:
        """Return how the run ended that the agent's own code makes, as `next_move` takes it.

        A captured run ends with each conversation, which says nothing about the agent.
        """
        entity = f"run/{record.observed.run}"
        if not record.observed.run or self._settings.mode == "capture":
            return ""
        found = self._log.states([entity]).get(entity)
        if found is None:
            return ""
        outcome = str(found.fields.get("outcome") or "unended")
        if outcome == "failed" and self._awaited.question_of(record.observed.run):
            return "asking"
        is_denial = outcome == "failed" and bool(self._settings.heal) and is_denied(self._log, record.observed.run)
        return "denied" if is_denial else outcome

    def _record_status(self, mine: OwnedEntries, record: AgentRecord, observed: ObservedState) -> None:
        """Record a status."""
        more = {}
        if observed.status in ("running", "healing") and observed.pid and self._process is not None:
            observed = observed._replace(
                process_start=self._process.process_start, boot=boot_id(), host=self._by.host
            )  # fmt: skip
            more["contained"] = dict(self._process.contained)
        mine.status(record, observed, **more)
        if observed.failures > record.observed.failures:
            self.counts = self.counts._replace(failures=self.counts.failures + 1)
        self._by.say(f"{self._settings.name}: {observed.status}: {observed.why}")


def supervisor_folder(root: Path) -> Path:
    """Make the folder under which agents have theirs; only this user can read it."""
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    root.chmod(0o700)
    return root
