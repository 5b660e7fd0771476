"""The worker's process: Faust's supervision of the fold, the pages, and users' agents if there are any.

Without agents the process is built like a Faust worker, from a mode.Worker, but has no Faust app: an app that consumes
nothing would serve no purpose.

SIGTERM and SIGINT stop it: first the agents, then the fold drains. After everything has ended, the failure is raised
here, and the command line prints it in one line.
"""

from __future__ import annotations

import asyncio
import io
import signal
from collections.abc import Callable
from typing import Any

import faust
import mode

from refold.avro.errors import StorageError
from refold.streams.runtime import calm_collector
from refold.streams.worker.host.agents_app import AgentsApp
from refold.streams.worker.host.thread_host import HostedService, ThreadHost


def run_process(service: HostedService, make_agents: Callable[[], AgentsApp] | None = None) -> None:
    """Run a fold service, and agents, until a signal; raises what ended it otherwise.

    make_agents: called when the event loop is there, for what Faust makes belongs to the loop of that moment.
    """
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    fold = ThreadHost(service, "fold")
    agents = None if make_agents is None else make_agents()
    worker = _worker(fold, agents, loop)
    ended: list[BaseException | None] = []
    try:
        with calm_collector():
            worker.execute_from_commandline()
    except SystemExit as error:  # mode's way to end, also with what failed while it started
        ended.append(error.__context__)
    except BaseException as error:  # a crash is raised as the first error, or as the cancellation of the rest
        ended.append(error)
    of_agents = [] if agents is None else [agents.app.crash_reason, agents.reading.failure]
    failures = [fold.failure, *of_agents, worker.crash_reason, *ended]
    said = [each for each in failures if isinstance(each, Exception)]
    if said:
        raise said[0]
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
    """Mode's worker. has_signal: SIGINT or SIGTERM has arrived."""

    has_signal = False

    def install_signal_handlers(self) -> None:
        super().install_signal_handlers()
        for number in (signal.SIGINT, signal.SIGTERM):
            # asyncio is informed by its wakeup descriptor, whichever Python function handles the signal.
            signal.signal(number, self._note)
            signal.siginterrupt(number, False)

    def _note(self, *_: object) -> None:
        self.has_signal = True


class _FaustWorker(_SignalledWorker, faust.Worker):
    """Faust's worker, with the same."""
