"""Give threads and callbacks the run and the step of the code that started them.

A context variable follows asyncio's tasks and asyncio.to_thread, and nothing else. So the functions that start threads,
submit work to thread pools, or store a callback are wrapped when the first run of the process begins:

1. Code that is started in a run's scope runs in that scope, in its own branch (agents/recorder/context.py).
2. Code that is started outside every run is not changed. The wrapped function then costs one read of a context
   variable.
3. A pool's own threads serve all callers, so they belong to no run: each piece of work carries its scope.
4. Only refold's own variable is carried. Other libraries' context variables are not affected.

Refold's own threads belong to no run, and take no number among what a run's code starts: a resume does not start them.

Other processes are marked instead (agents/recorder/other_processes.py).

Work that reaches an existing thread through a queue carries nothing: a tool that it calls is a stray.

`KeptFunctions` also wraps functions of C in modules that keep them under their own names (`from os import write`).
"""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import sys
import threading
from asyncio.base_events import BaseEventLoop
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from multiprocessing.process import BaseProcess
from types import BuiltinFunctionType, ModuleType
from typing import Any, TypeAlias

from refold.agents.recorder.context import BRANCHES, OWN_THREADS, SCOPE, WORK, Scope, branch_of
from refold.agents.recorder.other_processes import (
    WorkForProcess,
    mark_forked,
    mark_process,
    marked_command,
    marked_environment,
)


class KeptFunctions:
    """Replaces bare functions by wrapped ones in modules that keep references.

    Attributes:
        wrapped: The wrapped functions, by the bare ones.
    """

    def __init__(self, keeper: str) -> None:
        """Set up the replacement.

        Args:
            keeper: The name of the module that needs the bare functions itself.
        """
        self.wrapped: dict[Callable[..., Any], Callable[..., Any]] = {}
        self._keeper = keeper
        self._looked_through: set[int] = set()

    def replace(self) -> None:
        """Replace the functions in modules that were loaded since the last call."""
        modules: list[object] = list(sys.modules.values())  # a program may put any object into sys.modules
        for module in modules:
            if not isinstance(module, ModuleType) or id(module) in self._looked_through:
                continue
            self._looked_through.add(id(module))
            if module.__name__ == self._keeper:
                continue
            names = vars(module)
            for name, kept in list(names.items()):
                # isinstance would ask an object for its class too. A module that is loaded at its first use loads then,
                # such as those of OpenAI's SDK, which takes more than a second.
                if type(kept) is BuiltinFunctionType and kept in self.wrapped:
                    names[name] = self.wrapped[kept]


Function: TypeAlias = Callable[..., Any]

_ENV_AT = 11
"""The position of `env` among the arguments of Popen."""
_WRAPPERS_MAX = 20
"""Bounds the wrappers that are followed: an object that makes up any attribute has wrappers without end."""

_lock = threading.Lock()
_wrapped: set[tuple[object, str]] = set()
_kept = KeptFunctions(__name__)
_modules = 0
"""The number of loaded modules at the last scan."""


def install() -> None:
    """Wrap the modules that are loaded now. Idempotent, and cheap when repeated."""
    global _modules  # noqa: PLW0603
    with _lock:
        for owner, names, wrapper in _PLACES:
            found = _class(owner) if isinstance(owner, str) else owner
            if found is None:
                continue
            for name in names:
                if (found, name) not in _wrapped:
                    _wrapped.add((found, name))
                    bare = getattr(found, name)
                    around = wrapper(bare)
                    setattr(found, name, around)
                    if isinstance(found, ModuleType):
                        _kept.wrapped[bare] = around
        if len(sys.modules) != _modules:
            _modules = len(sys.modules)
            _kept.replace()


def _class(name: str) -> type | None:
    """Return a class if its module is loaded."""
    module, _, attribute = name.partition(":")
    found = sys.modules.get(module)
    return getattr(found, attribute, None)


def _scope_of(
    work: object, *, is_waited_for: bool = False, is_thread: bool = False, is_callback: bool = False
) -> Scope | None:
    """Return the scope of work that is started here; None outside of every run."""
    scope = SCOPE.get()
    if scope.run is None:
        return None
    branch = branch_of(scope)
    if branch is None:
        return scope
    started = branch.started(_name_of(work), is_waited_for=is_waited_for, is_thread=is_thread)
    if started.is_concurrent and not is_callback:
        started.begun()
    return scope._replace(branch=started)


def _name_of(work: object) -> str:
    """Return the name of work: that of its function, or of its class if it is not a function.

    Wrappers, such as a replay's, are skipped.
    """
    for _ in range(_WRAPPERS_MAX):
        inner = work.func if isinstance(work, functools.partial) else getattr(work, "__wrapped__", None)
        if inner is None:
            break
        work = inner
    name = getattr(work, "__name__", "")
    return name if isinstance(name, str) and name else type(work).__name__


def _carry_scope(work: Function, scope: Scope) -> Function:
    @functools.wraps(work, updated=())
    def carried(*args: Any, **kwargs: Any) -> Any:
        token, outer = SCOPE.set(scope), WORK.branch
        WORK.branch = scope.branch
        try:
            return work(*args, **kwargs)
        finally:
            WORK.branch = outer
            SCOPE.reset(token)
            if scope.branch is not None:
                scope.branch.ended()

    return carried


def _wrap_thread_start(start: Function) -> Function:
    @functools.wraps(start)
    def started(self: threading.Thread) -> None:
        if not (_serves_a_pool(self) or self.name.startswith(OWN_THREADS)):
            scope = _scope_of(getattr(self, "_target", None) or self, is_thread=True)
            if scope is not None:
                self.run = _carry_scope(self.run, scope)  # type: ignore[method-assign]
        start(self)

    return started


def _serves_a_pool(thread: threading.Thread) -> bool:
    target = getattr(thread, "_target", None)
    module = getattr(target, "__module__", "")
    return module in {"concurrent.futures.thread", "multiprocessing.pool"}


def _wrap_submit(*, is_callback: bool) -> Callable[[Function], Function]:
    def wrapper(submit: Function) -> Function:
        @functools.wraps(submit)
        def submitted(self: Any, fn: Function, /, *args: Any, **kwargs: Any) -> Any:
            scope = _scope_of(fn, is_thread=not is_callback, is_callback=is_callback)
            return submit(self, fn if scope is None else _carry_scope(fn, scope), *args, **kwargs)

        return submitted

    return wrapper


def _wrap_pool_method(*callbacks: int) -> Callable[[Function], Function]:
    """Wrap a method of a pool of multiprocessing: work for threads carries its scope, work for processes is marked.

    callbacks: their positions among the positional arguments after the function.
    """

    def wrapper(method: Function) -> Function:
        @functools.wraps(method)
        def pooled(self: Any, func: Function, *args: Any, **kwargs: Any) -> Any:
            scope = _scope_of(func, is_thread=True)
            if scope is None:
                return method(self, func, *args, **kwargs)
            if isinstance(self, sys.modules["multiprocessing.pool"].ThreadPool):
                func = _carry_scope(func, scope)
            else:
                func = WorkForProcess(_run_of(scope), func)
            given = [
                _carry_scope(each, scope) if index in callbacks and each is not None else each
                for index, each in enumerate(args)
            ]
            for name in ("callback", "error_callback"):
                if kwargs.get(name) is not None:
                    kwargs[name] = _carry_scope(kwargs[name], scope)
            return method(self, func, *given, **kwargs)

        return pooled

    return wrapper


def _wrap_process_submit(submit: Function) -> Function:
    @functools.wraps(submit)
    def submitted(self: Any, fn: Function, /, *args: Any, **kwargs: Any) -> Any:
        scope = SCOPE.get()
        return submit(self, fn if scope.run is None else WorkForProcess(scope.run.id, fn), *args, **kwargs)

    return submitted


def _wrap_process_start(start: Function) -> Function:
    @functools.wraps(start)
    def started(self: Any) -> None:
        scope = SCOPE.get()
        if scope.run is not None:
            mark_process(self, scope.run.id)
        start(self)

    return started


def _wrap_program_start(begin: Function) -> Function:
    """Wrap Popen's start of a program; asyncio uses it too."""

    @functools.wraps(begin)
    def begun(*args: Any, **kwargs: Any) -> None:
        run = SCOPE.get().run
        if run is not None:
            env = marked_environment(run.id, args[_ENV_AT] if len(args) > _ENV_AT else kwargs.get("env"))
            if len(args) > _ENV_AT:
                args = (*args[:_ENV_AT], env, *args[_ENV_AT + 1 :])
            else:
                kwargs["env"] = env
        begin(*args, **kwargs)

    return begun


def _wrap_system(system: Function) -> Function:
    @functools.wraps(system)
    def called(command: Any) -> Any:
        run = SCOPE.get().run
        return system(command if run is None else marked_command(run.id, command))

    return called


def _wrap_execv(function: Function) -> Function:
    """Wrap execv, which passes on the environment of this process."""
    bare = os.execve

    @functools.wraps(function)
    def become(path: Any, argv: Any) -> Any:
        run = SCOPE.get().run
        return function(path, argv) if run is None else bare(path, argv, marked_environment(run.id, None))

    return become


def _wrap_with_environment(function: Function) -> Function:
    """Wrap functions that take the environment as their third argument, where None means this process's own."""

    @functools.wraps(function)
    def given(path: Any, argv: Any, env: Any, **kwargs: Any) -> Any:
        run = SCOPE.get().run
        return function(path, argv, env if run is None else marked_environment(run.id, env), **kwargs)

    return given


def _after_fork() -> None:
    run = SCOPE.get().run
    if run is not None:
        mark_forked(run.id)


os.register_at_fork(after_in_child=_after_fork)


def _run_of(scope: Scope) -> str:
    return "" if scope.run is None else scope.run.id


def _wrap_task_creation(create: Function) -> Function:
    """Wrap the creation of tasks. A task inherits its creator's scope automatically; the wrapper also sets its branch.

    The branch is in the task's own context, because asyncio.to_thread copies that. A given context may be shared with
    other tasks, and is not changed.
    """

    @functools.wraps(create)
    def created(self: Any, coro: Any, **kwargs: Any) -> asyncio.Task[Any]:
        scope = _scope_of(coro, is_waited_for=not self.is_running())
        if scope is not None and kwargs.get("context") is None:
            kwargs["context"] = copy_context()
            kwargs["context"].run(SCOPE.set, scope)
        task: asyncio.Task[Any] = create(self, coro, **kwargs)
        if scope is not None and scope.branch is not None:
            BRANCHES[task] = scope.branch
            task.add_done_callback(lambda _, branch=scope.branch: branch.ended())  # type: ignore[misc]
        return task

    return created


_PLACES: tuple[tuple[object, tuple[str, ...], Callable[[Function], Function]], ...] = (
    (threading.Thread, ("start",), _wrap_thread_start),
    (ThreadPoolExecutor, ("submit",), _wrap_submit(is_callback=False)),
    (Future, ("add_done_callback",), _wrap_submit(is_callback=True)),
    ("multiprocessing.pool:Pool", ("apply_async",), _wrap_pool_method(2, 3)),
    ("multiprocessing.pool:Pool", ("_map_async",), _wrap_pool_method(3, 4)),
    ("multiprocessing.pool:Pool", ("imap", "imap_unordered"), _wrap_pool_method()),
    (BaseEventLoop, ("create_task",), _wrap_task_creation),
    (BaseProcess, ("start",), _wrap_process_start),
    ("concurrent.futures.process:ProcessPoolExecutor", ("submit",), _wrap_process_submit),
    (subprocess.Popen, ("__init__",), _wrap_program_start),
    (os, ("system",), _wrap_system),
    (os, ("execv",), _wrap_execv),
    (os, ("execve", "posix_spawn", "posix_spawnp"), _wrap_with_environment),  # other functions of os call these
)
