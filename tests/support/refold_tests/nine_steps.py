"""A task of nine write effects, in processes that kill themselves at a given boundary of the ledger's protocol.

A boundary is the moment before or after one command of the protocol: a read of the log, a durable write, a call of the
external service; for a recorded run also what it writes about its steps. The process that runs this module forks a
child for each life, so imports are done only once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
import uuid
from collections.abc import Callable
from typing import Any

import refold
from refold.agents.effects.errors import EffectUnknown
from refold.agents.effects.keys import StepKeys
from refold.agents.effects.ledger import Ledger
from refold.agents.effects.order import Order, Terms
from refold.agents.effects.protocol import CallRequest, Command, Logged, Protocol, Steps, Wait
from refold.agents.recorder.run_sinks import LogSink
from refold.avro.errors import StorageError, UnknownEntity
from refold_tests.child import Child
from refold_tests.third_party import ThirdParty

STEPS = 9
CODE = "from refold_tests.nine_steps import main; main()"
UNKNOWN, SLOW, FINISHED = 7, 8, 0
LEASE_S = 0.4
BEAT_S = 0.3
ARGUMENTS = {"args": [], "kwargs": {"amount": 3}}


def new_ledger(log: refold.AgentLog) -> Ledger:
    return Ledger(log, lambda: time.time_ns() // 1000, lambda: uuid.uuid4().hex, keeper=log.vault)


def order_of(task: str, run: str, step: int) -> Order:
    key = StepKeys(task, step).next("pay", ARGUMENTS)
    return Order(key, "pay", ARGUMENTS, run=run, agent="tests", step=f"{run}#{step}")


class Dying:
    """Kills its process at the boundary `at`, counted from step `step` on. `now` is the current step."""

    def __init__(self, step: int, at: int) -> None:
        self._step = step
        self._left = at
        self.now = 0

    def reached(self) -> None:
        if self._step and self.now >= self._step:
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self._left -= 1


def live(
    url: str, service: ThirdParty, task: str, run: str, dying: Dying, *, is_probing: bool, starts_at: float = 0
) -> int:
    """Perform the nine effects with a ledger alone, or as many as are done before the process dies.

    starts_at: the time when other processes begin too, in seconds since 1970. Each step then starts at the next beat,
    so that the processes race.
    """
    terms = Terms(attempts_max=1000, backoff_ms=1, lease_s=LEASE_S, probe=service.probe if is_probing else None)
    with refold.open(url) as log:
        ledger = new_ledger(log)
        for dying.now in range(1, STEPS + 1):
            order = order_of(task, run, dying.now)
            time.sleep(max(0.0, starts_at + dying.now * BEAT_S - time.time()))
            try:
                result = ledger.perform(order, service.call, terms)
            except EffectUnknown:
                return UNKNOWN
            except StorageError as error:
                return _slow(error)
            assert result == {"receipt": order.key[-8:]}
    return FINISHED


def live_run(url: str, service: ThirdParty, task: str, run: str, dying: Dying, *, is_probing: bool) -> int:
    """Perform the nine effects in a recorded run, begun or resumed. Its steps alternate between functions and blocks,
    and it has state.
    """

    @refold.tool(effect="write", attempts_max=1000, backoff_ms=1, lease_s=LEASE_S,
                 probe=service.probe if is_probing else None)  # fmt: skip
    def pay(*, amount: int, idempotency_key: str = "") -> Any:
        return service.call(idempotency_key)

    def agent(run: refold.Run) -> list[Any]:
        receipts = []
        for dying.now in range(1, STEPS + 1):
            if dying.now % 3 == 0:
                with run.step(f"pay {dying.now}"):
                    receipts.append(pay(amount=3))
                    run.state["paid"] = dying.now
            else:
                receipts.append(run.step(f"pay {dying.now}", pay, amount=3))
        assert run.state == {"paid": STEPS}
        return receipts

    _wrap_sink(dying)
    with refold.open(url) as log:
        try:
            begun = log.run("tests", resume=run)
        except UnknownEntity:
            begun = log.run("tests", id=run, task=task)
        try:
            receipts = begun.drive(agent)
        except EffectUnknown:
            return UNKNOWN
        except StorageError as error:
            return _slow(error)
    assert receipts == [{"receipt": run_order(task, run, step).key[-8:]} for step in range(1, STEPS + 1)]
    return FINISHED


def run_order(task: str, run: str, step: int) -> Order:
    """Return the order of a recorded run's step."""
    given = {"kwargs": {"amount": 3}}
    return Order(StepKeys(task, step).next("pay", given), "pay", given, run=run)


def _slow(error: StorageError) -> int:
    """Return SLOW if the log took longer than half of the lease, as happens on a loaded machine; else raise the
    error.
    """
    if "nothing was sent" not in str(error):
        raise error
    return SLOW


def _wrap_sink(dying: Dying) -> None:
    """Also die before and after what a run writes in addition to its effects."""
    for name in ("_observe_step_begin", "_observe_step_end", "await_written"):
        write = getattr(LogSink, name)

        def wrapped(*arguments: Any, write: Any = write) -> Any:
            dying.reached()
            result = write(*arguments)
            dying.reached()
            return result

        setattr(LogSink, name, wrapped)


def _wrap_protocol(reached: Callable[[], None]) -> None:
    """Call `reached` before and after each command of the ledger's protocol."""
    perform = Protocol.perform

    def around(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            reached()
            try:
                return function(*arguments)
            finally:
                reached()

        return call

    def wrapped(command: Command) -> Command:
        if isinstance(command, Logged):
            return Logged(around(command.work))
        return command if isinstance(command, Wait) else CallRequest(around(command.function), command.arguments)

    def steps(*arguments: Any) -> Steps:
        inner = perform(*arguments)
        try:
            command = next(inner)
            while True:
                try:
                    answer = yield wrapped(command)
                except BaseException as error:
                    command = inner.throw(error)
                else:
                    command = inner.send(answer)
        except StopIteration as ended:
            return ended.value

    Protocol.perform = steps  # type: ignore[method-assign, assignment]


def main() -> None:
    """For each line of JSON, the arguments of a life: fork, and print its exit status, or -9."""
    for line in sys.stdin:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                status = _one(**json.loads(line))
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _one(
    url: str, port: int, task: str, run: str, dies_in: int, dies_at: int, is_probing: bool, is_run: bool,
    starts_at: float,
) -> int:  # fmt: skip
    os.environ["REFOLD_KEYS"] = os.environ.get("REFOLD_KEYS") or ("none" if url.startswith("kafka") else "")
    dying = Dying(dies_in, dies_at)
    _wrap_protocol(dying.reached)
    service = ThirdParty(port)
    if is_run:
        return live_run(url, service, task, run, dying, is_probing=is_probing)
    return live(url, service, task, run, dying, is_probing=is_probing, starts_at=starts_at)


class Lives:
    """The process that forks lives. is_run: whether they are recorded runs instead of a ledger alone."""

    def __init__(self, child: Callable[..., Child], url: str, port: int, *, is_run: bool = False) -> None:
        self._child = child(CODE)
        self._given = {"url": url, "port": port, "is_run": is_run}

    def begin(
        self, task: str, run: str, *, dies_in: int = 0, dies_at: int = 0, is_probing: bool = True, starts_at: float = 0
    ) -> None:
        """Begin a life. `ended` waits for its end."""
        more = {"task": task, "run": run, "dies_in": dies_in, "dies_at": dies_at, "is_probing": is_probing}
        self._child.say(json.dumps({**self._given, **more, "starts_at": starts_at}))

    def ended(self) -> int:
        """Wait for the end; return the exit status."""
        status = int(self._child.line())
        assert status in (UNKNOWN, SLOW, FINISHED, -signal.SIGKILL), f"a life ended with {status}; see standard error"
        return status

    def live(self, task: str, run: str, **how: Any) -> int:
        """Run one life to its end."""
        self.begin(task, run, **how)
        return self.ended()
