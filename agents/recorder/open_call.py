"""A call whose answer arrives in pieces: it is open until its last piece.

1. It begins as any other call does: in the open step, or in its own step.
2. If the recording answers, `recorded` is that answer.
3. `answered` or `failed` ends it. If its step ends first, the pieces received until then are its answer (`so_far`).

Large values are created and encoded in a thread, so that an agent's event loop is not blocked.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple, TypeVar

from refold.agents.journal.record import Call, Plain
from refold.agents.recorder.answers import CallSite
from refold.agents.recorder.context import in_thread, task_here, waited_for
from refold.agents.recorder.failures import GRACE_S, raised, waited_s
from refold.agents.recorder.plain import decoded, encoded, is_large
from refold.agents.recorder.step_assembler import PendingCall

T = TypeVar("T")


class OffLoop:
    """Works on the values of one run. Work on large values runs in a thread, one at a time; the loop continues."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    async def done(self, work: Callable[[], T], value: object) -> T:
        """Return the result of the work on a value. The work is completed, even if the task is cancelled meanwhile."""
        if not is_large(value) or task_here() is None:
            return work()

        def run_alone() -> T:
            with self._lock:
                return work()

        future = in_thread(run_alone)
        await waited_for(future)
        return future.result()


class OpenRun(NamedTuple):
    """A call that is a nested run, begun.

    Attributes:
        found: The recorded call; None if the call was not recorded.
        site: The position in its attempt.
        failed: How many attempts of the step failed before.
        branch, nth: The name of its branch, and how many runs that branch began in the attempt before it. Code that is
            started only once in a process, such as a thread of a library, does not affect these.
        hash: The hash of the request.
    """

    call: OpenCall
    found: Call | None
    site: CallSite
    failed: int
    branch: str
    nth: int
    hash: str


class OpenCall:
    """A call whose answer arrives in pieces. Created by CallRecorder.opened."""

    def __init__(
        self, call: PendingCall, block: AbstractContextManager[object] | None, step: str, *, is_recorded: bool,
        answer: Callable[[Plain], None], fail: Callable[[BaseException], None], beside_loop: OffLoop,
    ) -> None:  # fmt: skip
        """Set up an open call.

        Args:
            call: The call.
            block: The step that is this call's own, already entered; None if it is in an open step.
            step: The id of its step, RUN#N.
            is_recorded: Whether the recording answers it.
            answer: Ends it with an answer.
            fail: Ends it with an error.
            beside_loop: Works on large values.
        """
        self._made = call
        self._block = block
        self._answer = answer
        self._fail = fail
        self._beside_loop = beside_loop
        self.is_recorded = is_recorded
        self.step = step

    @property
    def recorded(self) -> Plain:
        """Return the recorded answer.

        Raises:
            BaseException: The recorded failure of the call.
        """
        if self._made.failure is not None:
            error = raised(self._made.failure)
            self._leave(error)
            raise error
        return decoded(self._made.answer)

    async def wait_as_then(self, *, is_cancelled: bool = False) -> None:
        """Wait as long as the recorded call took, if its task was cancelled when it was recorded. Whatever cancelled
        it, such as a timeout of the code, does so again meanwhile.

        Args:
            is_cancelled: Whether it was cancelled although the call was answered.
        """
        duration_ms = self._made.duration_ms
        wait_s = duration_ms / 1000 + GRACE_S if is_cancelled else waited_s(self._made.failure, duration_ms)
        if wait_s:
            await asyncio.sleep(wait_s)

    @property
    def is_open(self) -> bool:
        """Whether its answer may still grow, because its step has not ended."""
        return self._made.is_open

    @property
    def name(self) -> str:
        """The name of what is called."""
        return self._made.name

    def says(self, answer: Plain) -> None:
        """Set the answer that it has if it never ends."""
        self._made.answer = encoded(answer, "an answer")

    def settle_with(self, so_far: Callable[[], Plain]) -> None:
        """Set a function that returns the answer so far; it is used if the step ends before the call."""
        self._made.so_far = so_far

    def answered(self, answer: Plain) -> None:
        """End the call with this answer; no effect if it had ended before."""
        if self._made.is_open:
            self._answer(answer)
        self._leave(None)

    async def answered_beside_loop(self, answer: Callable[[], Plain], made_of: object) -> None:
        """As `answered`, but the event loop continues while a large answer is created and encoded.

        Args:
            answer: Creates the answer.
            made_of: The data that makes the answer large.
        """
        try:
            if self._made.is_open:
                await self._beside_loop.done(lambda: self._answer(answer()), made_of)
        finally:
            self._leave(None)

    def failed(self, error: BaseException) -> None:
        """End the call with this error."""
        if self._made.is_open:
            self._fail(error)
        self._leave(error)

    def done(self) -> None:
        """Note that the recorded answer was returned to the code."""
        self._leave(None)

    def _leave(self, error: BaseException | None) -> None:
        block, self._block = self._block, None
        if block is not None:
            block.__exit__(None if error is None else type(error), error, None)
