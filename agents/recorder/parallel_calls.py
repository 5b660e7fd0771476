"""Calls outside any step that threads and tasks make concurrently with the run's own code, which started them.

1. Each call that the run's own code makes outside any step forms its own step.
2. The first call that a thread or a task makes there begins a step named `parallel`. The step holds the calls of all
   threads and tasks, in the order in which these were started (recorder/context.py).
3. It ends when the run's own code makes a call, reads `run.state`, opens a step, or ends. So if code waits for the
   threads and tasks that it started, the step has the same calls every time, whatever the timing. A call still in
   progress is an error, except when the state is read.
4. Steps that such threads and tasks open concurrently are parts of it (recorder/parallel_steps.py).

So a framework that runs the nodes of a graph concurrently, and waits for them, is recorded without a step around it.
"""

from __future__ import annotations

from refold.agents.recorder.answers import Departure
from refold.agents.recorder.context import SCOPE, ExecutionBranch, branch_of
from refold.agents.recorder.steps import OpenStep, Stepping
from refold.avro.errors import InputError

NAME = "parallel"


def step_of_call(run: Stepping, title: str) -> OpenStep | None:
    """Return the step that a call made here belongs to; None: it forms its own step.

    Raises:
        InputError: The run's own code makes it, while concurrent calls are in progress.
    """
    with run.opening:
        end_abandoned(run)
        step = run.open_step
        if step is not None and not step.is_parallel:
            return step
        if concurrent_branch(run) is None:
            end_parallel(run, title)
            return None
        if step is None:
            run.enter_step(NAME, is_parallel=True)
        return run.open_step


def end_parallel(run: Stepping, then: str) -> None:
    """End a step of such calls, if one is open.

    Args:
        run: The run.
        then: What begins now, for the error.

    Raises:
        InputError: One of the calls is in progress.
    """
    step = _open_step(run)
    if step is None:
        return
    if is_under_way(step):
        raise InputError(
            f"run {run.id}: {then} begins while calls of threads or tasks started outside any step are "
            "under way: wait for them first, or open a step around all of them"
        )
    run.end_step(None)


def end_abandoned(run: Stepping) -> None:
    """End the step of a call whose answer arrives in pieces, if the run's own code continues without the rest."""
    step = run.open_step
    if step is not None and step.is_call and not is_under_way(step) and concurrent_branch(run) is None:
        run.end_step(None)


def end_awaited(run: Stepping) -> None:
    """End such a step if the run's own code continues after waiting for it."""
    if _open_step(run) is None:
        return
    with run.opening:
        step = _open_step(run)
        if step is not None and not is_under_way(step) and concurrent_branch(run) is None:
            run.end_step(None)


def end_with_run(run: Stepping, error: BaseException | None) -> InputError | None:
    """End the open step, if any, with its run: for example of a stream or a generator that was not read to its end.

    A departure ends the run, which raises it.

    Returns:
        The error that a call is in progress, if the run has no error itself.
    """
    if run.open_step is None:
        return None
    try:
        run.end_step(error)
    except InputError as unfinished:
        return unfinished
    except Departure:
        return None
    return None


def _open_step(run: Stepping) -> OpenStep | None:
    """Return the open step if it is one of such calls."""
    step = run.open_step
    return step if step is not None and step.is_parallel else None


def is_under_way(step: OpenStep) -> bool:
    """Return whether a call or a part of such a step has not ended."""
    return step.parts > 0 or any(call.is_open and call.so_far is None for call in step.made)


def concurrent_branch(run: Stepping) -> ExecutionBranch | None:
    """Return the branch that the code is on, if it was started outside of any step; None for the run's own code."""
    scope = SCOPE.get()
    branch = branch_of(scope) if scope.run is run else None
    return branch if branch is not None and branch.root is run.branch and branch.is_concurrent else None
