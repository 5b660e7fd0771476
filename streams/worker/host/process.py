"""The worker's process: Faust's supervision over the fold, the pages, and users' agents where there are any.

Without agents the process is what a Faust worker is made of, a mode.Worker, and has no Kafka client of Faust's: an app
that consumes nothing would only be one more member of one more group.

SIGTERM and SIGINT stop it: the agents first, then the fold drains. What failed is raised here, after everything has
ended, for the command line to say in one line.

What the host needs of a fold service, and the service as a thread under mode, Faust's own supervision.

1. The thread runs the service until it is drained or fails.
2. A service that fails, or ends undrained, crashes the process: whoever supervises it from outside starts it again, and
   it goes on from what is committed.
3. Stopping drains: the batch at hand is finished and committed, the group left; that is waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import threading
from collections.abc import Callable
from typing import Any, Protocol

import faust
import mode

from refold.avro.errors import StorageError
from refold.streams.runtime import calm_collector


class HostedService(Protocol):
    """A fold service; `run` blocks in one thread, `drain` comes from another and returns at once."""

    def run(self) -> None:
        """Fold until drained; raises what it cannot go on from."""

    def drain(self) -> None:
        """Finish and commit what is at hand, leave the group, and have `run` return."""


class FoldHost(mode.Service):
    """Runs a fold service in a thread of its own."""

    def __init__(self, service: HostedService, **given: Any) -> None:
        super().__init__(**given)
        self._service = service
        self._ended: asyncio.Future[None] | None = None
        self.is_draining = False
        self.failure: BaseException | None = None

    async def on_start(self) -> None:
        """Begin folding."""
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        threading.Thread(target=self._run, args=(loop,), name="refold-fold", daemon=True).start()

    @mode.Service.task
    async def _watch(self) -> None:
        assert self._ended is not None
        await asyncio.wait([self._ended])
        if not self.is_draining:
            self.failure = self.failure or StorageError("the fold ended by itself, undrained")
            await self.crash(self.failure)

    async def on_stop(self) -> None:
        """Drain, and wait until it is done."""
        self.is_draining = True
        if self._ended is not None:
            self._service.drain()
            await asyncio.wait([self._ended])

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self._service.run()
        except BaseException as error:
            self.failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(self._note_end)

    def _note_end(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)


def run_process(service: HostedService, make_app: Callable[[], faust.App] | None = None) -> None:
    """Run a fold service, and an app, until a signal; raises what ended it otherwise.

    make_app: called when the event loop is there, for what Faust makes belongs to the loop of that moment.
    """
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    host = FoldHost(service)
    app = None if make_app is None else make_app()
    worker = _worker(host, app, loop)
    ended: list[BaseException | None] = []
    try:
        with calm_collector():
            worker.execute_from_commandline()
    except SystemExit as error:  # mode's way to end, also with what failed while it started
        ended.append(error.__context__)
    except BaseException as error:  # a crash comes as whatever was met first, or as the cancelling of the rest
        ended.append(error)
    failures = [host.failure, None if app is None else app.crash_reason, worker.crash_reason, *ended]
    said = [each for each in failures if isinstance(each, Exception)]
    if said:
        raise said[0]
    if worker._signal_stop_future is None or any(isinstance(each, asyncio.CancelledError) for each in failures):
        raise StorageError("the worker was cancelled from within, by what did not say why; start it again")


def _worker(host: FoldHost, app: faust.App | None, loop: asyncio.AbstractEventLoop) -> mode.Worker:
    quiet: dict[str, Any] = {
        "loop": loop, "quiet": True, "override_logging": False, "redirect_stdouts": False, "stdout": io.StringIO(),
        "stderr": io.StringIO(), "daemon": True,
    }  # fmt: skip
    if app is None:
        return mode.Worker(host, **quiet)
    return faust.Worker(app, host, **quiet)
