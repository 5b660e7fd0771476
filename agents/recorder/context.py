"""Find the run, step and call that the running code belongs to.

1. `SCOPE` holds it for a context. A task gets a copy when it is created. Threads, work in thread pools, and callbacks
   of futures get one from agents/recorder/context_propagation.py.
2. A call that reaches refold with a run in its scope belongs to that run, and to the step in its scope. If that run or
   that step has ended, the call is refused, because it can be recorded nowhere.
3. A call without a run in its scope is a plain call if no run is open in the process. If one is open, the call is a
   stray: it is not known whether that run's code made it. A replay ends with it (`StrayCall`). A live run refuses it,
   or adopts it if the run was begun with strays="adopt" and no other run is open. Code that calls a tool outside any
   run on purpose uses `unrecorded()`.
4. `ExecutionBranch` numbers concurrent code by where it was started, so that the order of a step's calls does not
   depend on timing: a call and the start of a thread or a task each take the next number of their branch, and the
   started code counts under its number. A branch also has a name, by which a replay gives equal requests of several
   branches the answers that each of them got. Numbers would differ if something is started only once in a process, such
   as an SDK's check of its platform.
5. Outside every step the run's own code is on the run's branch. A thread or a task that it starts there is concurrent
   with it (recorder/parallel_calls.py). A task that a loop runs while the code waits, as asyncio.run does, is not
   concurrent.
6. Pools that run work in a context that they copied earlier (LangChain's) restore a scope without the work's branch. So
   a thread itself stores the branch of its work.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar
from weakref import WeakKeyDictionary, ref

from refold.agents.recorder.other_processes import run_of_parent
from refold.agents.recorder.writer import RecordingFailed
from refold.avro.errors import InputError

T = TypeVar("T")
Strays: TypeAlias = Literal["refuse", "adopt"]
Order: TypeAlias = tuple[int, ...]


class Caller(Protocol):
    """The part of a run that calls need to find it.

    Attributes:
        process: The id of the process that records it.
    """

    id: str
    process: int
    strays: Strays

    @property
    def has_ended(self) -> bool:
        """Whether nothing more can be recorded."""

    @property
    def is_in_memory(self) -> bool:
        """Whether no log gets what the run does: in a replay."""

    def call_tool(self, found: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return a tool's answer; an awaitable if the tool is async."""

    def stray(self, what: str) -> Exception | None:
        """Return the error to raise for a call outside of this run; None if the run is live."""

    def require_no_recording(self, agent: str) -> None:
        """Check that a run of this agent may begin here.

        Raises:
            WithinRun: The answers are from a recording that holds no run of that agent beginning here.
        """

    def is_asking(self, inside: tuple[Any, ...]) -> bool:
        """Return whether code inside these calls is inside one of this run's calls."""

    def begin_child_run(self, head: Any, given: Any, log: str) -> Any:
        """Begin a nested run.

        Args:
            head: Its head, a Recording.
            given: Its other options, as in recorder/children.py.
            log: The URL of the log in which it was to begin.
        """


class StrayCall(InputError):
    """A tool was called outside of every run while a run is open in the process; it was not executed."""


# A garbage collection while the lock is held may start a task in the same thread: an SDK's client closes itself so.
_lock = threading.RLock()


class ExecutionBranch:
    """One line of execution in a step or a run: its own code, or a thread or task that it started.

    Attributes:
        is_concurrent: Whether it may run while the code that started it continues.
        name: Its function, and what started it, as `node#2/look#1`: the first `look` of the second `node` that was
            started; "" for the run's own code.
        is_racing: Whether it is in a thread of the run's own code, which may end before the next thread is started.
        part: The name of the part that it belongs to (recorder/parallel_steps.py); "" outside of parts.
    """

    __slots__ = (
        "__weakref__", "_alone", "_count", "_has_met", "_met", "_parent", "_started", "is_concurrent", "is_racing",
        "name", "part", "path", "root",
    )  # fmt: skip

    def __init__(
        self, path: Order = (), root: ExecutionBranch | None = None, *, name: str = "", is_concurrent: bool = False,
        is_racing: bool = False, part: str = "", parent: ExecutionBranch | None = None,
    ) -> None:  # fmt: skip
        self.path = path
        self.root = root or self
        self.name = name
        self.is_concurrent = is_concurrent
        self.is_racing = is_racing
        self.part = part
        self._parent = parent
        self._has_met = False  # whether a concurrent branch was alive that it neither started nor was started by
        self._count = itertools.count()
        self._started: Counter[str] = Counter()
        # For a root: the live concurrent branches that met no other, by their ids. Each of them started the next.
        self._alone: dict[int, ref[ExecutionBranch]] = {}
        self._met: dict[int, ref[ExecutionBranch]] = {}

    def next(self) -> Order:
        """Return the position of the next call or start."""
        return (*self.path, next(self._count))

    def started(
        self, work: str, *, is_waited_for: bool = False, is_thread: bool = False, part: str = ""
    ) -> ExecutionBranch:  # fmt: skip
        """Start a branch here.

        Args:
            work: The name of its function.
            is_waited_for: Whether the code that starts it does nothing until it ends.
            is_thread: Whether it is a thread.
            part: The name of the part that it is.
        """
        self._started[work] += 1
        name = f"{self.name}/{work}#{self._started[work]}" if self.name else f"{work}#{self._started[work]}"
        return ExecutionBranch(
            self.next(), self.root, name=name, is_concurrent=self.is_concurrent or not is_waited_for,
            is_racing=self.is_racing or (is_thread and not self.is_concurrent), part=part or self.part, parent=self,
        )  # fmt: skip

    def begun(self) -> None:
        """Mark it as alive, until it has ended or is garbage collected.

        The cost does not grow with the number of live branches: a branch is compared with those that met no other, and
        each of them leaves that group, or started this one. Whether it met one of the others need not be checked.
        Either it did, or that one started it; in both cases it is not alone.
        """
        key, alone, met = id(self), self.root._alone, self.root._met

        def forget(_: ref[ExecutionBranch]) -> None:
            alone.pop(key, None)
            met.pop(key, None)

        with _lock:
            # It registers before it compares, because another one may begin between any two lines: each sees the other.
            alone[key] = ref(self, forget)
            for found in list(alone.values()):
                other = found()
                if other is not None and not (self.has_started(other) or other.has_started(self)):
                    other._meets()
                    self._has_met = True
            if met or self._has_met:
                self._meets()

    def _meets(self) -> None:
        """Note that another concurrent branch was alive at the same time."""
        self._has_met = True
        found = self.root._alone.get(id(self))
        if found is not None:
            self.root._met[id(self)] = found
            self.root._alone.pop(id(self), None)

    def ended(self) -> None:
        """Mark it as ended."""
        with _lock:
            self.root._alone.pop(id(self), None)
            self.root._met.pop(id(self), None)

    def is_alone(self) -> bool:
        """Whether, since it began, only branches were alive that it started or was started by."""
        each: ExecutionBranch | None = self
        while each is not None:
            if each._has_met:
                return False
            each = each._parent
        return True

    def has_started(self, other: ExecutionBranch) -> bool:
        """Return whether the other branch was started on this one, or on one that this one started."""
        return other.root is self.root and self.path == other.path[: len(self.path)]


class Scope(NamedTuple):
    """The run, step and calls that the running code belongs to.

    Attributes:
        attempt: The attempt of the step in which the code was started.
        inside: The calls that the code is part of.
        is_plain: Whether the code requested that tools be plain functions.
    """

    run: Caller | None = None
    attempt: Any = None
    inside: tuple[Any, ...] = ()
    branch: ExecutionBranch | None = None
    is_plain: bool = False


OWN_THREADS = "refold-"
"""The prefix of the names of refold's own threads."""
_OWN_THREADS_MAX = 32
NOWHERE = Scope()
SCOPE: ContextVar[Scope] = ContextVar("refold.scope", default=NOWHERE)

BRANCHES: WeakKeyDictionary[asyncio.Task[Any], ExecutionBranch] = WeakKeyDictionary()
"""The branches of tasks that a run began in or that were created in one. Tasks may share a context, so the branch is
not in the scope."""


class OnBranch:
    """Puts the code's task on a branch until `leave`, even if a library switches the task to another one's context."""

    def __init__(self, branch: ExecutionBranch) -> None:
        self._task = task_here()
        if self._task is not None:
            self._before = BRANCHES.get(self._task)
            BRANCHES[self._task] = branch

    def leave(self) -> None:
        """Put the task back on its earlier branch."""
        if self._task is None:
            return
        if self._before is None:
            BRANCHES.pop(self._task, None)
        else:
            BRANCHES[self._task] = self._before


class _Work(threading.local):
    """Thread-local: the branch of the work that the thread does."""

    branch: ExecutionBranch | None = None


WORK = _Work()

_open: dict[int, Caller] = {}


def entered(run: Caller) -> None:
    """Note that a run is open in this process."""
    _open[id(run)] = run


def left(run: Caller) -> None:
    """Note that a run has ended."""
    _open.pop(id(run), None)


def current(tool: str) -> Caller | None:
    """Return the run that a call of a tool belongs to; None: it is a plain call.

    Raises:
        RecordingFailed: The run has ended, or is recorded by another process.
        StrayCall: No run is in scope, and one is open, here or in the process that started this one.
    """
    scope = SCOPE.get()
    if scope.run is not None:
        require_open(scope.run, tool)
        return scope.run
    if _open:
        return _adopting_caller(tool, scope)
    run = "" if scope.is_plain else run_of_parent()
    if run:
        raise StrayCall(
            f"{tool} was called in a process that the code of run {run} started, or gave this work to: it was not "
            "executed, because it would not be recorded. Call it in the run's own process; or do all the work of the "
            "other "
            "process in one tool, whose result is recorded, and call no tools there; or, if the call belongs to "
            "no run, make it in `with refold.unrecorded():`"
        )
    return None


def caller_of(agent: str, *, is_resumed: bool = False) -> Caller | None:
    """Return the run in which a run of an agent begins here as a nested run; None if there is none.

    Args:
        agent: The agent of the new run.
        is_resumed: Whether the new run was begun before.

    Raises:
        WithinRun: The code belongs to a run that a recording answers, and the new run cannot be its child.
        Departure: The code belongs to no run, while a replay is open.
    """
    scope = SCOPE.get()
    caller = scope.run
    if caller is not None:
        if caller.is_asking(scope.inside):  # in a tool that is really called; its result is recorded as a whole
            return None
        if not (is_resumed or caller.has_ended):
            return caller
        caller.require_no_recording(agent)
        return None
    departures = [run.stray(f"begin a run of {agent}") for run in list(_open.values()) if not run.has_ended]
    for each in departures:
        if each is not None:
            raise each
    return None


def require_open(run: Caller, what: str) -> None:
    """Check that the run can still record here.

    Raises:
        RecordingFailed: It cannot.
    """
    if run.process != os.getpid():
        raise RecordingFailed(
            f"{what} was called in a process that was forked from the one that records run {run.id}: its answer would "
            "not be recorded. Call it in the run's own process, and pass its answer to the other process"
        )
    if run.has_ended:
        raise RecordingFailed(
            f"run {run.id} has ended, so {what} would not be recorded: wait for threads and tasks before the run ends"
        )


def _adopting_caller(tool: str, scope: Scope) -> Caller | None:
    runs = [run for run in list(_open.values()) if not run.has_ended]
    departures = [error for run in runs if (error := run.stray(f"call the tool {tool} outside of the run")) is not None]
    if departures:
        raise departures[0]
    if scope.is_plain or not runs:
        return None
    if len(runs) == 1 and runs[0].strays == "adopt":
        require_open(runs[0], tool)
        return runs[0]
    raise StrayCall(
        f"{tool} was called outside any run, while run {runs[0].id} is open in this process: it was not executed, "
        "because it would not be recorded. Start the thread, task or work that calls it inside the run; or begin the "
        "run "
        'with strays="adopt", which records it there; or, if it belongs to no run, call it in '
        "`with refold.unrecorded():`"
    )


@contextmanager
def unrecorded() -> Iterator[None]:
    """Call tools as plain functions in this context, outside of every run, although runs are open in the process.

    A replay that is open in the process refuses such calls all the same.

    Raises:
        InputError: The code belongs to a run.
    """
    scope = SCOPE.get()
    if scope.run is not None:
        raise InputError(f"this code belongs to run {scope.run.id}: what its tools do must be recorded")
    token = SCOPE.set(scope._replace(is_plain=True))
    try:
        yield
    finally:
        SCOPE.reset(token)


def branch_of(scope: Scope) -> ExecutionBranch | None:
    """Return the branch that the running code is on; None outside of a run."""
    task = task_here()
    branch = None if task is None else BRANCHES.get(task)
    if branch is None or (scope.branch is not None and branch.root is not scope.branch.root):
        branch = scope.branch
    work = WORK.branch
    return work if branch is not None and work is not None and branch.has_started(work) else branch


_own_threads: list[ThreadPoolExecutor] = []
os.register_at_fork(after_in_child=_own_threads.clear)


def in_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Run refold's own work in a thread of refold's own.

    The work belongs to no run, and takes no number among what the run's code starts. The loop's own threads are not
    used, because all of them may be waiting for the run's code.
    """
    with _lock:
        if not _own_threads:
            _own_threads.append(ThreadPoolExecutor(_OWN_THREADS_MAX, f"{OWN_THREADS}beside-loop"))
        threads = _own_threads[0]
    token = SCOPE.set(NOWHERE)
    try:
        return asyncio.get_running_loop().run_in_executor(threads, copy_context().run, work)
    finally:
        SCOPE.reset(token)


async def waited_for(future: asyncio.Future[Any]) -> None:
    """Wait until the future is done. If the task is cancelled meanwhile, it is cancelled only after that."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


def here() -> tuple[int, int]:
    """Return the thread and the task in which the code runs."""
    task = task_here()
    return threading.get_ident(), 0 if task is None else id(task)


def task_here() -> asyncio.Task[Any] | None:
    """Return the task in which the code runs; None outside of a loop."""
    return asyncio.current_task() if asyncio._get_running_loop() is not None else None
