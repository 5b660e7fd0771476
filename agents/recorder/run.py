"""An open run: the object that an agent's author uses. Values that cannot be computed again are recorded through it.

    with log.run("refund-agent", input={"order": 7}) as run:
        with run.step("plan"):
            answer = run.model(client.chat, messages=[...])
            run.decide(answer["choice"], why=answer["reason"])
        run.step("refund", refund, 7, 50)

In a replay, in a resume and in a fork the same code runs, and recorded answers are returned instead of calling again
(recorder/answers.py).

recorder/run_steps.py says how a step is recorded.
"""

from __future__ import annotations

import inspect
import os
import random
import threading
from collections.abc import Callable
from contextvars import Token
from types import TracebackType
from typing import Any, Self

from refold.agents.journal.objects import loaded_json
from refold.agents.journal.record import Recording
from refold.agents.recorder.answers import Answers, LiveAnswers
from refold.agents.recorder.calls import CallRecorder
from refold.agents.recorder.children import ChildCall, Children
from refold.agents.recorder.context import (
    SCOPE,
    ExecutionBranch,
    OnBranch,
    Scope,
    Strays,
    entered,
    left,
    task_here,
)
from refold.agents.recorder.context_propagation import install
from refold.agents.recorder.failures import failure_of, outcome_of
from refold.agents.recorder.parallel_calls import end_awaited, end_with_run
from refold.agents.recorder.plain import decoded, encoded, kept
from refold.agents.recorder.run_backend import Nondeterminism, RunBackend
from refold.agents.recorder.run_end import RunEnd
from refold.agents.recorder.run_sinks import RunSink
from refold.agents.recorder.run_steps import RunSteps
from refold.agents.recorder.steps import OpenStep
from refold.agents.recorder.tools import tool
from refold.agents.recorder.writer import RecordingFailed
from refold.agents.redaction.redactor import Redact
from refold.avro.errors import InputError


class Run(RunSteps):
    """One execution of an agent. A context manager. Steps are sequential; calls in a step may be in any task or thread.

    Attributes:
        id: The run's id.
        agent: The agent's name.
        input: A copy of the run's input.
        task: The given task; without one, the run's id.
        state: The run's working memory, a dict of values that the record can restore (docs/AGENTS.md), changed in
            place.
        output: The result, set by the code.
    """

    tool = staticmethod(tool)

    def __init__(
        self,
        head: Recording,
        *,
        answers: Answers,
        sink: RunSink,
        backend: RunBackend,
        chance: Nondeterminism,
        redact: Redact,
        strays: Strays = "refuse",
        on_stray: Callable[[str], Exception] | None = None,
        children: Children,
        call: ChildCall | None = None,
    ) -> None:
        """Create a run.

        Args:
            head: The run's head, as the agent's code gets it.
            answers: The answers of its calls.
            sink: Receives everything that the run does, in order.
            backend: The log, or a replay's replacement.
            chance: Its clock and random numbers.
            redact: The run's redactor.
            strays: What happens to tool calls outside of any run.
            on_stray: In a replay, creates the error for a call outside of every run.
            children: Creates nested runs.
            call: For a nested run, the parent's side of it.
        """
        self.id = head.run
        self.process = os.getpid()
        self.strays = strays
        self.has_ended = False
        self.agent = head.agent
        # A copy: the writer's thread still has to write the original, and the agent's code may change its input.
        self.input = loaded_json(encoded(head.given, "the run's input"))
        self._state: dict[str, Any] = loaded_json(encoded(head.state, "the run's state"))
        self.output: Any = None
        self.task = head.task or head.run  # a fork has no task, so its effects have keys of their own
        self.answers = self._answers = answers
        self._children = children
        self._call = call
        self._is_live = answers.makes_every_call  # there is no recording that could answer
        self._sink = sink
        self._chance = chance
        self._dice = random.Random(head.seed) if head.seed is not None else chance.random
        self._calling = CallRecorder(
            self, answers, backend, chance, redact, sink.await_written, sink.call_ended,
            asks_answers=not isinstance(answers, LiveAnswers),
        )  # fmt: skip
        self._parted = head.parted
        self._ended_steps = 0
        self.open_step: OpenStep | None = None
        self.opening = threading.RLock()
        self.branch = ExecutionBranch()
        self.left_step: OpenStep | None = None  # the step in which the code departed from a recording
        self._on_stray = on_stray
        self._token: Token[Scope] | None = None
        self._on_branch: OnBranch | None = None
        self._part()

    # The run

    @property
    def state(self) -> dict[str, Any]:
        """The working memory. Reading it ends a parallel step that was waited for, so that a fork's change is in it."""
        end_awaited(self)
        return self._state

    def __enter__(self) -> Self:
        install()
        self._token = SCOPE.set(Scope(self, inside=SCOPE.get().inside, branch=self.branch))
        self._on_branch = OnBranch(self.branch)
        entered(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave_scope()
        try:
            self.end(error)
        finally:
            left(self)

    def _leave_scope(self) -> None:
        if self._token is not None:
            SCOPE.reset(self._token)
            self._token = None
        if self._on_branch is not None:
            self._on_branch.leave()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """As `__exit__`. The loop continues while the end is written."""
        if isinstance(error, GeneratorExit) or task_here() is None:  # awaiting is not possible, or there is no loop
            return self.__exit__(kind, error, trace)
        self._leave_scope()
        try:
            await self._run_end(error).record_beside_loop()
        finally:
            left(self)

    def drive(self, agent: Callable[[Run], Any]) -> Any:
        """Run an agent's function to its end, and return the run's output: what the function returns, if not None.

        Raises:
            InputError: It is a coroutine function.
            Exception: The error of the function, which the run recorded.
        """
        with self:
            result = agent(self)
            if inspect.isawaitable(result):
                raise InputError("this agent is a coroutine function: await run.drive_async(agent)")
            self.output = self.output if result is None else result
        return self.output

    async def drive_async(self, agent: Callable[[Run], Any]) -> Any:
        """As `drive`; the agent may also be a coroutine function."""
        async with self:
            result = agent(self)
            result = await result if inspect.isawaitable(result) else result
            self.output = self.output if result is None else result
        return self.output

    def end(self, error: BaseException | None) -> None:
        """Record how the run ended, by the code's error if any; durable on return. Raises the Departure, if the code
        departed from the recording and caught the error."""
        self._run_end(error).record()

    def _run_end(self, error: BaseException | None) -> RunEnd:
        if self.has_ended:
            raise RecordingFailed(f"run {self.id} has ended")
        unfinished = end_with_run(self, error)
        error = unfinished or error
        self.has_ended = True
        now = self._chance.now_micros()
        if (departure := self._answers.departure) is not None:
            return RunEnd(self._sink, self._call, failure_of(departure, now), now, departure=departure, error=error)
        output = None
        if error is None:
            try:
                output = decoded(kept(self.output, "run.output"))
            except InputError as unkept:
                error = unfinished = unkept
        failure = None if error is None else failure_of(error, now)
        return RunEnd(self._sink, self._call, failure, now, outcome_of(error), output, error=unfinished)
