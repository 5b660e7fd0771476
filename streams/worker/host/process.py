"""The worker's process: Faust's supervision of the fold, the pages, and users' agents if there are any.

Without agents the process is built like a Faust worker, from a mode.Worker, but has no Faust app: an app that consumes
nothing would serve no purpose.

SIGTERM and SIGINT stop it: first the agents, then the fold drains. After everything has ended, the failure is raised
here, and the command line prints it in one line.

A process that still runs STOP_S after the signal prints each stack and ends with status 1. Nothing is lost
by it: a worker may end at any moment. It was seen once, after 110 restarts of a broker: two workers had given up their
partitions, and did not end for three minutes.
"""

from __future__ import annotations

import asyncio
import faulthandler
import io
import logging
import signal
import sys
from collections.abc import Callable
from typing import Any

import faust
import mode

from refold.avro.errors import StorageError
from refold.streams.runtime import tune_garbage_collector
from refold.streams.worker.host.agents_app import AgentsApp
from refold.streams.worker.host.thread_host import HostedService, ThreadHost

# Draining waits for a transaction at most, and Kubernetes kills a process after 30 s if nothing else is configured.
STOP_S = 120.0


def run_process(
    service: HostedService, make_agents: Callable[[], AgentsApp] | None = None, stop_s: float = STOP_S
) -> None:
    """Run a fold service, and agents, until a signal.

    Args:
        service: The fold service.
        make_agents: Called once the event loop exists, because Faust's objects belong to the current loop.
        stop_s: How long after a signal the process may run, in seconds.

    Raises:
        StorageError: The worker was cancelled by its own code.
        Exception: The first error that ended the service or the agents.
    """
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    fold = ThreadHost(service, "fold")
    agents = None if make_agents is None else make_agents()
    worker = _worker(fold, agents, loop)
    worker.stop_s = stop_s
    ended: list[BaseException | None] = []
    try:
        with tune_garbage_collector():
            worker.execute_from_commandline()
    except SystemExit as error:  # mode's way to end, also with what failed while it started
        ended.append(error.__context__)
    except BaseException as error:  # a crash is raised as the first error, or as the cancellation of the rest
        ended.append(error)
    of_agents = [] if agents is None else [agents.app.crash_reason, agents.reading.failure]
    failures = [fold.failure, *of_agents, worker.crash_reason, *ended]
    errors = [each for each in failures if isinstance(each, Exception)]
    if errors:
        raise errors[0]
    if not worker.has_signal or any(isinstance(each, asyncio.CancelledError) for each in failures):
        raise StorageError("the worker was cancelled by its own code, without a reason; start it again")


def _worker(fold: ThreadHost, agents: AgentsApp | None, loop: asyncio.AbstractEventLoop) -> _SignalledWorker:
    quiet: dict[str, Any] = {
        "loop": loop, "quiet": True, "override_logging": False, "redirect_stdouts": False, "stdout": io.StringIO(),
        "stderr": io.StringIO(), "daemon": True,
    }  # fmt: skip
    if agents is None:
        return _SignalledWorker(fold, **quiet)
    return _FaustWorker(agents.app, fold, **quiet)


class _SignalledWorker(mode.Worker):
    """Mode's worker.

    Attributes:
        has_signal: Whether SIGINT or SIGTERM has arrived.
        stop_s: See run_process.
    """

    # A class of ours would have its messages logged as refold's own; see ThreadHost.
    logger = logging.getLogger("mode.refold")
    has_signal = False
    stop_s: float = STOP_S

    def install_signal_handlers(self) -> None:
        super().install_signal_handlers()
        for number in (signal.SIGINT, signal.SIGTERM):
            # asyncio is informed by its wakeup descriptor, whichever Python function handles the signal.
            signal.signal(number, self._note)
            signal.siginterrupt(number, False)

    def _note(self, *_: object) -> None:
        if not self.has_signal and sys.__stderr__ is not None:
            # In C, without a thread of Python: a call that does not return may hold any lock.
            faulthandler.dump_traceback_later(self.stop_s, exit=True, file=sys.__stderr__)
        self.has_signal = True


class _FaustWorker(_SignalledWorker, faust.Worker):
    """Faust's worker, with the same."""
