"""A service that blocks a thread, under mode, which is Faust's own supervision.

1. The thread runs the service until it is drained or fails.
2. A service that fails, or ends undrained, crashes the process: its supervisor starts it again, and
   it continues from what is committed.
3. Stopping drains: the service finishes and commits what is at hand; that is waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import Any, Protocol

import mode

from refold.avro.errors import StorageError


class HostedService(Protocol):
    """A service; `run` blocks in one thread, `drain` comes from another and returns at once."""

    def run(self) -> None:
        """Work until drained; raises what it cannot continue from."""

    def drain(self) -> None:
        """Finish and commit what is at hand, leave the group, and have `run` return."""


class ThreadHost(mode.Service):
    """Runs a service in a thread of its own.

    Attributes:
        failure: What ended it, where it was not drained.
    """

    # What mode says of its start and its crash is a library's: without this it would be logged as refold's own.
    logger = logging.getLogger("mode.refold")

    def __init__(self, service: HostedService, name: str, **given: Any) -> None:
        """
        Args:
            service: The service to run.
            name: What the service is, for the thread's name and the error's text.
            given: The arguments of mode.Service.
        """
        super().__init__(**given)
        self._service = service
        self._name = name
        self._ended: asyncio.Future[None] | None = None
        self.is_draining = False
        self.failure: BaseException | None = None

    async def on_start(self) -> None:
        """Start the thread."""
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        threading.Thread(target=self._run, args=(loop,), name=f"refold-{self._name}", daemon=True).start()

    @mode.Service.task
    async def _watch(self) -> None:
        assert self._ended is not None
        await asyncio.wait([self._ended])
        if not self.is_draining:
            self.failure = self.failure or StorageError(f"the {self._name} ended by itself, undrained")
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
        except BaseException as error:  # raised again when the worker has ended
            self.failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(self._note_end)

    def _note_end(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
