"""Steps that threads and tasks open concurrently with the run's own code: parts of the step `parallel`
(recorder/parallel_calls.py).

One step of a run is open at a time, and steps have an order. If several threads or tasks open steps concurrently,
timing would decide which is first. So such a step is a part of `parallel`:

1. A part is a branch with the step's name: its calls are recorded under that name, in the order in which parts were
   started. The state that it leaves is recorded with the whole of `parallel`.
2. `parallel` does not end while a part is open.
3. A function that is a part is retried as a step would be, in this process. A resume runs it again, and its calls are
   answered from the record.
4. A task opens a step of the run itself if it was alone all the time: only threads or tasks that it started or was
   started by were alive. Tasks that are started together all exist before one of them runs. Threads do not: the first
   may have ended before the second is started. So a step in a thread of the run's own code is always a part.
5. A part does not begin in a part, nor while a step of the run itself is open.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

from refold.agents.recorder.context import SCOPE, ExecutionBranch, OnBranch, branch_of, require_open
from refold.agents.recorder.failures import RecordedFailure
from refold.agents.recorder.parallel_calls import NAME, concurrent_branch, is_under_way
from refold.agents.recorder.plain import Shape
from refold.agents.recorder.run_backend import Nondeterminism
from refold.agents.recorder.steps import OpenStep, Stepping
from refold.agents.recorder.tools import RetryPolicy
from refold.avro.errors import InputError, RefoldError


def part_of(run: Stepping, name: str) -> ParallelBranch | None:
    """Return the part that a step would be if it began here; None if it is a step of the run itself.

    Raises:
        InputError: It would begin in a part, or while another step is open.
    """
    branch = concurrent_branch(run)
    if branch is None:
        return None
    with run.opening:
        step = run.open_step
        is_waited_for = step is None or (step.is_parallel and not is_under_way(step))
        if not branch.part and not branch.is_racing and is_waited_for and branch.is_alone():
            return None
        return _begin_branch(run, name, branch)


def _begin_branch(run: Stepping, name: str, branch: ExecutionBranch) -> ParallelBranch:
    require_open(run, name)
    if branch.part:
        raise InputError(
            f"run {run.id}: step {branch.part} is still open in this thread or task; end it before {name} begins"
        )
    with run.opening:
        step = run.open_step
        if step is not None and not step.is_parallel:
            raise InputError(
                f"run {run.id}: {name} begins while step {step.number} ({step.name}), which other code opened, is "
                "open: start concurrent code before any of it opens a step, or open one step around all of it"
            )
        if step is None:
            run.enter_step(NAME, is_parallel=True)
        opened = run.open_step
        assert opened is not None
        opened.parts += 1
    return ParallelBranch(run, opened, branch.started(f"step {name}", part=name))


class ParallelBranch:
    """One part, which has begun, until its block ends."""

    def __init__(self, run: Stepping, step: OpenStep, branch: ExecutionBranch) -> None:
        self._run = run
        self._step = step
        self._branch = branch
        self._outer = SCOPE.get()
        self._on_branch: OnBranch | None = None

    def __enter__(self) -> None:
        SCOPE.set(self._outer._replace(branch=self._branch))
        self._on_branch = OnBranch(self._branch)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if SCOPE.get().branch is self._branch:
            SCOPE.set(self._outer)
        if self._on_branch is not None:
            self._on_branch.leave()
        with self._run.opening:
            self._step.parts -= 1


class FunctionBranch:
    """A part that is a function. It is called again if it fails and may be retried."""

    def __init__(
        self, run: Stepping, name: str, part: ParallelBranch, shape: Shape, trying: RetryPolicy, chance: Nondeterminism
    ) -> None:
        self._run = run
        self._name = name
        self._part: ParallelBranch | None = part
        self._shape = shape
        self._trying = trying
        self._chance = chance
        self._tries = 0

    def call(self, function: Callable[[], Any]) -> Any:
        """Call the function, and return its result."""
        while True:
            try:
                with self._open_branch():
                    result = function()
                    self._shape.recorded(result)
                    return result
            except BaseException as error:  # recorded, then raised again or retried
                wait_ms = self._retry_wait(error)
                if wait_ms is None:
                    raise
                self._chance.sleep_s(wait_ms / 1000)

    async def call_async(self, function: Callable[[], Awaitable[Any]]) -> Any:
        """Await the coroutine function, and return its result."""
        while True:
            try:
                with self._open_branch():
                    result = await function()
                    self._shape.recorded(result)
                    return result
            except BaseException as error:  # recorded, then raised again or retried
                wait_ms = self._retry_wait(error)
                if wait_ms is None:
                    raise
                await self._chance.sleep_async(wait_ms / 1000)

    def _open_branch(self) -> ParallelBranch:
        part, self._part = self._part, None
        self._tries += 1
        branch = branch_of(SCOPE.get())
        assert branch is not None, "it was on one before"
        return part or _begin_branch(self._run, self._name, branch)

    def _retry_wait(self, error: BaseException) -> int | None:
        is_ours = isinstance(error, RefoldError) and not isinstance(error, RecordedFailure)
        return None if is_ours else self._trying.wait_ms(self._tries, error)
