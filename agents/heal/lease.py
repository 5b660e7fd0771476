"""The lease on healing a run: of several processes that would heal it at once, one does.

Each run has an entity `healing_lease/<run>`. Its acts are judged in the log's order, by the rules that hold for agents
(agents/supervise/lease.py): a claim is granted if nothing was recorded since its author read.

1. Read the acts. The lease is free if there was no claim, if the last one was released, or if its process ran under
   this boot of this machine and is gone.
2. Otherwise another process has it. Refuse, with who heals and since when, if it renewed the lease within the lease's
   time, by the recorded times; or as soon as it renews it.
3. If it renews nothing for one lease by this machine's own clock, it is gone.
4. Claim the lease, naming the last claim and beat that were read. Read again. Not granted: refuse.
5. Set a timer of the kernel that kills this process after ACTING_SHARE of the lease (kill_timer.py). A thread records
   the next beat in each third of the lease and reads it back. If this claim is still the last one, it sets the timer
   again, from when it began to record.
6. At the end clear the timer, and record the release.

Killed at any moment: the lease is free at once for processes of this machine (1), and after one lease for others (3).
Stopped past the lease, or cut off from the log: the timer kills this process before another one may claim the lease. So
no two processes run the agent's code. Processes that the agent's code started live on, unless a keeper ends them
(agents/supervise/keeper.py): a supervisor heals in a kept process.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from time import sleep
from typing import Any

from refold.agents.heal.kill_timer import KillTimer
from refold.agents.supervise.keeper import boottime_s
from refold.agents.supervise.lease import ACTING_SHARE, LEASE_MS, RENEWING_SHARE, AgentRecord
from refold.agents.supervise.machine_processes import boot_id, is_alive, process_start
from refold.avro.errors import RefoldError
from refold.avro.observation import Source
from refold.avro.times import time_text
from refold.streams.client import Log
from refold.streams.log.port import observation_in
from refold.streams.open import process_context
from refold.streams.runtime_context import RuntimeContext

TYPE = "healing_lease"
ELSEWHERE = 3
"""The exit status of a process that does not heal a run, because another one does."""
_LOOK_S = 0.1


class HealedElsewhere(RefoldError):
    """Another process heals the run; the message says which, and since when."""


@contextmanager
def healing_lease(log: Log, run: str, lease_ms: int = LEASE_MS) -> Iterator[None]:
    """Have the lease on healing a run: see the steps above.

    Args:
        log: The log, of which this thread is the one.
        run: The run's id.
        lease_ms: How long after a renewal this process may continue.

    Raises:
        HealedElsewhere: Another process has it.
    """
    lease = _Lease(log, run, lease_ms, process_context())
    lease.claim()
    with lease.kept():
        yield


def healer_elsewhere(log: Log, run: str) -> str:
    """Return which other process heals a run now, and since when; empty if none does, by the recorded times."""
    lease = _Lease(log, run, LEASE_MS, process_context())
    return lease.other()


class _Lease:
    def __init__(self, log: Log, run: str, lease_ms: int, runtime: RuntimeContext) -> None:
        self._log = log
        self._run = run
        self._entity = f"{TYPE}/{run}"
        self._lease_ms = lease_ms
        self._runtime = runtime
        self._token = f"{runtime.agent}:{runtime.new_id()}"
        self._record = AgentRecord()
        self._claims: dict[str, Mapping[str, Any]] = {}
        self._renewed_at = 0
        self._seq = 0
        self._until_s = 0.0

    def claim(self) -> None:
        """Take steps 1 to 4."""
        self._read()
        seen, seen_s = self._record.beat, boottime_s()
        while self._is_anothers():
            now_s = boottime_s()
            is_recent = self._runtime.now_micros() < self._renewed_at + self._record.lease_ms * 1000
            if self._record.beat != seen or is_recent:
                raise self._elsewhere()
            if now_s >= seen_s + self._record.lease_ms / 1000:
                break
            sleep(_LOOK_S)
            self._read()
        self._until_s = boottime_s() + ACTING_SHARE * self._lease_ms / 1000
        self._act(
            "claimed", self._record.beat, after=self._record.token or None, owner=self._runtime.agent,
            lease_ms=self._lease_ms, claimed_at=self._runtime.now_micros(), pid=os.getpid(),
            process_start=process_start(os.getpid()), boot=boot_id(),
        )  # fmt: skip
        self._read()
        if self._record.token != self._token:
            raise self._elsewhere()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Take steps 5 and 6."""
        timer, is_over = KillTimer(), threading.Event()
        timer.set(self._until_s)
        renewing = threading.Thread(target=self._renew, args=(timer, is_over.wait), daemon=True, name="healing lease")
        renewing.start()
        try:
            yield
        finally:
            is_over.set()
            renewing.join()
            timer.close()
            with suppress(RefoldError):  # the lease ends by itself
                self._act("released", self._record.beat + 1)

    def _renew(self, timer: KillTimer, is_over: Callable[[float], bool]) -> None:
        share_s = RENEWING_SHARE * self._lease_ms / 1000
        wait_s = share_s
        while not is_over(wait_s):
            began_s = boottime_s()
            try:
                beat = self._record.beat + 1
                self._act("renewed", beat)
                self._read()
            except RefoldError:  # the log is out of reach: again soon, until the timer ends this process
                wait_s = share_s / 10
                continue
            if self._record.token != self._token or self._record.beat != beat:
                sys.stderr.write(f"refold: {self._elsewhere()}\n")
                sys.stderr.flush()
                os._exit(ELSEWHERE)
            wait_s = share_s
            timer.set(began_s + ACTING_SHARE * self._lease_ms / 1000)

    def other(self) -> str:
        """Return which other process has the lease; empty if none has it."""
        self._read()
        claim = self._claims.get(self._record.token, {})
        is_mine = (claim.get("pid"), claim.get("boot")) == (os.getpid(), boot_id())
        is_over = self._runtime.now_micros() >= self._renewed_at + self._record.lease_ms * 1000
        return "" if is_mine or is_over or not self._is_anothers() else self._holder(claim)

    def _is_anothers(self) -> bool:
        """Return whether an open claim's process may still be there."""
        claim = self._claims.get(self._record.token, {})
        is_here = bool(claim.get("boot")) and claim.get("boot") == boot_id()
        is_gone = is_here and not is_alive(claim.get("pid") or 0, claim.get("process_start") or 0)
        return self._record.is_open and not is_gone

    def _elsewhere(self) -> HealedElsewhere:
        holder = self._holder(self._claims.get(self._record.token, {}))
        return HealedElsewhere(
            f"{holder}; its lease ends {self._record.lease_ms / 1000:g} seconds after its last renewal"
        )

    def _holder(self, claim: Mapping[str, Any]) -> str:
        since = time_text(claim.get("claimed_at") or 0)
        return f"run {self._run} is being healed by {self._record.owner} since {since}"

    def _read(self) -> None:
        with self._log.lock:
            port = self._log.port
            port.publish()
            port.refresh()
            end = port.ends()[port.partition_of(self._entity)]
            for each in port.entity_records(self._entity, end, self._record.offset):
                observation = observation_in(port.registry, each)
                lease = observation.patch.get("lease")
                token = str(lease["token"]) if isinstance(lease, Mapping) else ""
                was = self._record.token, self._record.beat
                self._record.apply(observation, each.id)
                if (self._record.token, self._record.beat) != was:
                    self._renewed_at = observation.observed_at
                    self._claims.setdefault(token, observation.patch)
            self._record.offset = max(self._record.offset, end)

    def _act(self, act: str, beat: int, after: str | None = None, **fields: Any) -> None:
        lease = {"token": self._token, "act": act, "after": after, "beat": beat}
        now = self._runtime.now_micros()
        source = Source(self._runtime.agent, self._token, "", "", self._seq)
        self._seq += 1
        patch = {"lease": lease, "renewed_at": now, **fields}
        self._log.observe(self._entity, patch, source=source, observed_at=now, allow_future=True)
        self._log.flush()
