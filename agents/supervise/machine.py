"""Decide what an owner does next about its agent. Pure: the same record, process and time give the same decision.

    stopped, unknown, none --start--> starting --> running --> ended | failed
                                                   running --failed, may be tried again--> waiting --time--> starting
                                                   running --pause--> pausing --held--> paused --resume--> running
                                                   running --stop--> stopping --> stopped
    failed, to be healed --> healing --> ended | failed | asking --answer--> failed, to be healed
                                                   running --a policy asks a person--> asking --answer--> waiting

1. A process that ended is recorded before anything else is decided.
2. A request of a person counts once: an agent that ended or failed is started again only by a newer request, or by its
   restart policy.
3. A process that was to be stopped is `stopped`, however it ended.
4. An agent that should be paused and has no process gets none until it is resumed.
5. A run that failed is healed if the agent has remedies and its restart policy has nothing more to do, or if a policy
   denied its last call: another start would be denied, too. What follows a healing is decided in
   agents/heal/supervised.py.
6. A run that ended because its policy asks a person is not over, however its process ended: awaited.py.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from refold.agents.supervise.lease import AgentRecord, ObservedState
from refold.agents.supervise.settings import AgentSettings


class ProcessView(NamedTuple):
    """The process of an agent as its owner sees it. Without one, nothing is set.

    Attributes:
        exit_status: The exit status of the one that ended, negative for a signal; None while it runs.
        failure: Why it could not be started, or why nothing is known of its end.
        is_refused: Whether another attempt would be refused too.
        ran_s: How long it ran, in seconds.
        is_at_gate: Whether it waits at a boundary.
    """

    pid: int = 0
    is_there: bool = False
    exit_status: int | None = None
    failure: str = ""
    is_refused: bool = False
    ran_s: float = 0.0
    is_at_gate: bool = False


class Deed(Enum):
    """An action of the owner, in addition to recording a status."""

    NOTHING = ""
    START = "start"
    STOP = "stop"
    HOLD = "hold"
    LET_GO = "let go"


class NextMove(NamedTuple):
    """The status to record before the deed; None: what is recorded stays true."""

    deed: Deed = Deed.NOTHING
    observed: ObservedState | None = None


def next_move(
    record: AgentRecord, process: ProcessView, settings: AgentSettings, now: int, outcome: str = ""
) -> NextMove:
    """Return what the owner of an agent does next.

    Args:
        record: What the log says of the agent.
        process: Its process.
        settings: How it is run.
        now: The time, microseconds.
        outcome: How the run ended that a process would continue; `denied` if it failed because its policy denied a
            call, `asking` if because its policy asks a person about one, `unended` if it did not end; empty if there
            is none.
    """
    observed = record.observed._replace(handled=record.desired.number)
    if process.failure or process.exit_status is not None:
        return NextMove(observed=_status_after_end(record, process, settings, now, outcome))
    move = _with_process(record, process, observed) if process.is_there else _without_process(
        record, observed, now, outcome
    )  # fmt: skip
    is_new = record.observed.handled < record.desired.number
    if move == NextMove() and is_new and observed.status == record.desired.what:
        return NextMove(observed=observed)  # there is nothing to do, and that is recorded too
    return move


def _with_process(record: AgentRecord, process: ProcessView, observed: ObservedState) -> NextMove:
    wanted, status = record.desired.what, observed.status
    if status == "starting" and process.pid:
        return NextMove(observed=observed._replace(status="running", why="its process runs", pid=process.pid))
    if status == "healing" and process.pid and not observed.pid:
        return NextMove(observed=observed._replace(why=f"its run {observed.run} is being healed", pid=process.pid))
    if wanted == "stopped" and status not in ("stopping", "starting") and (status != "healing" or observed.pid):
        return NextMove(Deed.STOP, observed._replace(status="stopping", why=_request_text(record)))
    if wanted == "paused" and status == "running":
        return NextMove(Deed.HOLD, observed._replace(status="pausing", why=_request_text(record)))
    if wanted == "paused" and status == "pausing" and process.is_at_gate:
        return NextMove(observed=observed._replace(status="paused", why="it waits at a boundary"))
    if wanted == "running" and status in ("pausing", "paused"):
        return NextMove(Deed.LET_GO, observed._replace(status="running", why=_request_text(record)))
    return NextMove()


def _without_process(record: AgentRecord, observed: ObservedState, now: int, outcome: str) -> NextMove:
    wanted, status, before = record.desired.what, observed.status, record.observed
    is_new = before.handled < record.desired.number
    if wanted != "running":
        is_over = status in ("ended", "failed") and not is_new
        return NextMove() if status == wanted or not wanted or is_over else _stopped_move(observed, wanted, record)
    is_due = status == "failed" and observed.heals > 0
    if status in ("ended", "failed", "asking") and not is_new and not is_due:
        return NextMove()
    if (status == "waiting" or is_due) and now < observed.restart_at and not is_new:
        return NextMove()
    if observed.heals and observed.run:
        return NextMove(Deed.START, _without_pid(observed)._replace(
            status="healing", why=f"its run {observed.run} is to be healed", attempt=observed.attempt + 1,
            exit_status=None,
        ))  # fmt: skip
    if observed.run and outcome == "succeeded" and status not in ("ended", "failed", "waiting", ""):
        why = "its run succeeded before its process ended"
        return NextMove(observed=_without_pid(observed)._replace(status="ended", why=why, failures=0))
    if status in ("ended", "failed"):
        observed = observed._replace(failures=0)
    run = "" if status == "ended" or outcome == "succeeded" else observed.run
    why = "its wait is over" if status == "waiting" and not is_new else _request_text(record)
    return NextMove(Deed.START, _without_pid(observed)._replace(
        status="starting", why=why, run=run, attempt=observed.attempt + 1, exit_status=None
    ))  # fmt: skip


def _stopped_move(observed: ObservedState, status: str, record: AgentRecord) -> NextMove:
    """Record that an agent without a process is stopped or paused. The run of one that ended is over."""
    run = "" if observed.status == "ended" else observed.run
    return NextMove(observed=_without_pid(observed)._replace(status=status, why=_request_text(record), run=run))


def _status_after_end(
    record: AgentRecord, process: ProcessView, settings: AgentSettings, now: int, outcome: str
) -> ObservedState:
    """Return the status after the end of a process."""
    before, status = record.observed, process.exit_status
    observed = _without_pid(before)._replace(exit_status=status, handled=record.desired.number)
    if before.status == "stopping":
        return observed._replace(status="stopped", why=before.why, failures=0)
    if outcome == "asking" and settings.restart != "never" and not process.failure:
        return observed._replace(status="asking", why="a person is asked about a call of its run", heals=0)
    has_succeeded = status == 0 or (outcome == "succeeded" and bool(before.run) and not process.failure)
    how = process.failure or _exit_text(status or 0)
    if has_succeeded and settings.restart != "always":
        return observed._replace(status="ended", why=how, failures=0)
    if has_succeeded:
        failures = 0
        wait_s = settings.backoff_s
        observed = observed._replace(run="")
    else:
        failures = (0 if process.ran_s > settings.reset_s else before.failures) + 1
        is_given_up = settings.retries is not None and failures > settings.retries
        is_denied = bool(settings.heal) and outcome == "denied"
        if settings.restart == "never" or is_given_up or process.is_refused or is_denied:
            more = f", {failures} times in a row" if is_given_up and failures > 1 else ""
            heals = int(bool(settings.heal) and settings.mode == "sdk" and bool(outcome))
            return observed._replace(status="failed", why=how + more, failures=failures, heals=heals)
        wait_s = settings.backoff_after(failures)
    return observed._replace(
        status="waiting", why=how, failures=failures, restart_at=now + int(wait_s * 1e6)
    )  # fmt: skip


def _without_pid(observed: ObservedState) -> ObservedState:
    return observed._replace(pid=0, process_start=0, boot="", restart_at=0)


def _exit_text(status: int) -> str:
    return f"a signal ended it: {-status}" if status < 0 else f"it exited with {status}"


def _request_text(record: AgentRecord) -> str:
    desired = record.desired
    return f"{desired.by or 'somebody'} requested: {desired.what}" + (f", because {desired.why}" if desired.why else "")


def needs_outcome(record: AgentRecord, process: ProcessView) -> bool:
    """Return whether `next_move` needs to know how the run ended that a process would continue."""
    if process.exit_status is not None or process.is_there or process.failure:
        return process.exit_status is not None
    is_new = record.observed.handled < record.desired.number
    return record.desired.what == "running" and (
        is_new or record.observed.status not in ("ended", "failed", "waiting", "asking")
    )
