"""Steps of a run, as its code opens and ends them; one is open at a time."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

from refold.agents.effects.keys import StepKeys
from refold.agents.journal.record import Attempt, Step
from refold.agents.recorder.context import NOWHERE, Caller, ExecutionBranch, Scope
from refold.agents.recorder.step_assembler import NULL, PendingAttempt, PendingCall
from refold.avro.errors import RefoldError


class AttemptsExhausted(RefoldError):
    """A step was tried as often as allowed, in this process and before."""


class Changed(RefoldError):
    """The agent's code does not do what it did when a committed step was recorded."""


@dataclass(slots=True)
class OpenStep:
    """An open step.

    Attributes:
        before: The JSON of the run's state when it began.
        keys: Returns the keys of the attempt's effects, beginning with the first that needs one.
        committed: The recorded step that its block only repeats, in a resumed run or a fork.
        earlier: The attempts made before, in other processes.
        is_call: Whether it belongs to one call, made outside any step, and accepts no other.
        is_parallel: Whether it holds the calls of concurrent threads and tasks (recorder/parallel_calls.py).
        parts: How many parts are open in it (recorder/parallel_steps.py).
        outer: The scope in which it was opened.
    """

    number: int
    name: str
    before: bytes
    keys: StepKeys | None = None
    committed: Step | None = None
    earlier: tuple[Attempt, ...] = ()
    is_call: bool = False
    is_parallel: bool = False
    parts: int = 0
    attempts: list[PendingAttempt] = field(default_factory=list)
    outer: Scope = NOWHERE

    @property
    def attempt(self) -> PendingAttempt:
        """The current attempt."""
        return self.attempts[-1]

    @property
    def made(self) -> list[PendingCall]:
        """The calls of the current attempt."""
        return self.attempts[-1].made


class Stepping(Caller, Protocol):
    """The part of a run that steps need.

    Attributes:
        open_step: The open step; None between steps.
        task: The first part of the keys of its effects.
        branch: The branch of the run's own code outside any step.
        opening: A lock that is held while a step is opened.
    """

    @property
    def step_number(self) -> int:
        """The number of the open step, or of the next one."""

    task: str
    open_step: OpenStep | None
    branch: ExecutionBranch
    opening: threading.RLock

    def enter_step(self, name: str, *, is_call: bool = False, is_parallel: bool = False) -> None:
        """Open a step that is a block.

        Args:
            name: Its name.
            is_call: Whether it belongs to one call, and accepts no other.
            is_parallel: See recorder/parallel_calls.py.
        """

    def part(self, name: str) -> AbstractContextManager[None] | None:
        """Return the part that this step is of a parallel step; None if it is a step of the run itself."""

    def end_step(self, error: BaseException | None, result: bytes = NULL) -> None:
        """End the open step.

        Args:
            error: The error with which it ended, if any.
            result: Its result as JSON.
        """


class StepBlock:
    """`with run.step(name):`, and the same with `async with`."""

    def __init__(self, run: Stepping, name: str, *, is_call: bool = False) -> None:
        self._run = run
        self._name = name
        self._is_call = is_call
        self._part: AbstractContextManager[None] | None = None
        self._step: OpenStep | None = None

    def __enter__(self) -> None:
        self._part = None if self._is_call else self._run.part(self._name)
        if self._part is None:
            self._run.enter_step(self._name, is_call=self._is_call)
            self._step = self._run.open_step
        else:
            self._part.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._part is not None:
            self._part.__exit__(kind, error, trace)
        elif self._run.open_step is self._step:  # if not, it ended when the code continued without it, or with the run
            self._run.end_step(error)

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


class CallBlock(StepBlock):
    """The step of a call outside any step. It may be held beyond its block, for an answer that arrives later."""

    def __init__(self, run: Stepping, name: str) -> None:
        super().__init__(run, name, is_call=True)
        self._is_held = False

    def hold(self) -> None:
        """Let the step continue after the block, unless it fails."""
        self._is_held = True

    def leave(self, error: BaseException | None) -> None:
        """End a step that is held; no effect on any other."""
        if self._is_held:
            self._is_held = False
            self.__exit__(None if error is None else type(error), error, None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._is_held:
            return
        self._is_held = False
        super().__exit__(kind, error, trace)
