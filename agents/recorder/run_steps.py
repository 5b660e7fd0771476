"""The steps of a run: how they begin, are tried again, and end; and how recorded ones are given back.

1. A step begins: its number and the attempt are recorded, so that a process killed in it is noticed.
2. Each call in it is answered from the recording, or made and recorded. A write tool is recorded in the ledger of
   effects before and after it is sent (agents/effects/), and only when everything recorded before is durable.
3. A step ends: its calls, its result, and its changes of `state` become one record in the chain. A step that failed
   leaves `state` as it was before.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar, overload

from refold.agents.journal.delta import applied, is_same
from refold.agents.journal.objects import loaded_json
from refold.agents.journal.record import Fork, Plain, Step
from refold.agents.recorder.context import (
    SCOPE,
    ExecutionBranch,
    Scope,
    Strays,
    here,
    require_open,
)
from refold.agents.recorder.failures import RecordedFailure, failure_of, outcome_of, raised
from refold.agents.recorder.parallel_calls import end_abandoned, end_parallel
from refold.agents.recorder.parallel_steps import FunctionBranch, ParallelBranch, part_of
from refold.agents.recorder.plain import Shape, decoded, encoded, kept, shape_of, snapshot
from refold.agents.recorder.requests import RunCalls
from refold.agents.recorder.run_backend import Nondeterminism
from refold.agents.recorder.step_assembler import NULL, PendingAttempt, PendingStep
from refold.agents.recorder.steps import AttemptsExhausted, Changed, OpenStep, StepBlock
from refold.agents.recorder.tools import RetryPolicy
from refold.avro.errors import InputError, RefoldError

P = ParamSpec("P")
T = TypeVar("T")
RetryOn = tuple[type[Exception], ...]


class RunSteps(RunCalls):
    """The part of a run that implements Stepping."""

    has_ended: bool
    open_step: OpenStep | None
    opening: threading.RLock
    branch: ExecutionBranch
    left_step: OpenStep | None
    process: int
    strays: Strays
    _state: dict[str, Any]
    _chance: Nondeterminism
    _parted: tuple[Fork, ...]
    _ended_steps: int

    # A ParamSpec accepts no other keywords: if a step has options, a type checker does not check its arguments.
    @overload
    def step(self, name: str, /) -> StepBlock: ...

    @overload
    def step(
        self, name: str, function: Callable[..., T], /, *args: Any, attempts_max: int, backoff_ms: int = 0,
        retry_on: RetryOn = (Exception,), returns: Any = None, **kwargs: Any,
    ) -> T: ...  # fmt: skip

    @overload
    def step(self, name: str, function: Callable[..., T], /, *args: Any, returns: Any, **kwargs: Any) -> T: ...

    @overload
    def step(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    def step(  # type: ignore[misc]  # a function's own parameters are not named as its step's options
        self, name: str, function: Callable[..., Any] | None = None, /, *args: Any, attempts_max: int | None = None,
        backoff_ms: int = 0, retry_on: RetryOn = (Exception,), returns: Any = None, **kwargs: Any,
    ) -> Any:  # fmt: skip
        """Run one step: `with run.step(name):`, or a function to call, whose result is returned.

        If a function's step is recorded, it is not run again: its result is returned.

        Args:
            attempts_max: How often it is tried, counted across restarts; once by default.
            backoff_ms: The wait after the first failed attempt, milliseconds; it doubles each time.
            returns: The type of the result, if it is not a JSON value and not annotated.
        """
        if function is None:
            return StepBlock(self, name)
        shape = shape_of(function, returns, f"the step {name}")
        trying = RetryPolicy(1 if attempts_max is None else attempts_max, backoff_ms, retry_on)
        if inspect.iscoroutinefunction(function):
            return self._step_async(name, lambda: function(*args, **kwargs), shape, trying, attempts_max is not None)
        return self._step(name, lambda: function(*args, **kwargs), shape, trying, attempts_max is not None)

    def _step(self, name: str, call: Callable[[], Any], shape: Shape, trying: RetryPolicy, is_bounded: bool) -> Any:
        part = part_of(self, name)
        if part is not None:
            return FunctionBranch(self, name, part, shape, trying, self._chance).call(call)
        reused = self._reuse_step(name)
        if reused is not None:
            return self._given_back(reused, shape)
        self._begin_step(name, trying.attempts_max if is_bounded else None)
        while True:
            try:
                result = call()
                data = shape.recorded(result)
            except BaseException as error:  # recorded, then raised again or retried
                wait_ms = self._retry_wait(error, trying)
                if wait_ms is None:
                    raise
                self._chance.sleep_s(wait_ms / 1000)
                self._begin_attempt(self._require_open_step)
            else:
                self.end_step(None, data)
                return result

    async def _step_async(
        self, name: str, call: Callable[[], Awaitable[Any]], shape: Shape, trying: RetryPolicy, is_bounded: bool
    ) -> Any:
        part = part_of(self, name)
        if part is not None:
            return await FunctionBranch(self, name, part, shape, trying, self._chance).call_async(call)
        reused = self._reuse_step(name)
        if reused is not None:
            return self._given_back(reused, shape)
        self._begin_step(name, trying.attempts_max if is_bounded else None)
        while True:
            try:
                result = await call()
                data = shape.recorded(result)
            except BaseException as error:  # recorded, then raised again or retried
                wait_ms = self._retry_wait(error, trying)
                if wait_ms is None:
                    raise
                await self._chance.sleep_async(wait_ms / 1000)
                self._begin_attempt(self._require_open_step)
            else:
                self.end_step(None, data)
                return result

    def _reuse_step(self, name: str) -> Step | None:
        """Return the step that need not be run again, after adding it to this run; None if it must be run."""
        self._require_closed(name)
        step = self._answers.step(self._ended_steps + 1, name)
        if step is None:
            return None
        after = applied(self._kept_state(), step.delta)
        self._become(loaded_json(encoded(after, "the run's state")))
        self._ended_steps += 1
        self._sink.step_reused(step, after)
        self._part()
        return step

    @staticmethod
    def _given_back(step: Step, shape: Shape) -> Any:
        if step.failure is not None:
            raise raised(step.failure)
        return shape.served(step.result)

    def part(self, name: str) -> ParallelBranch | None:
        """As Stepping."""
        return part_of(self, name)

    def enter_step(self, name: str, *, is_call: bool = False, is_parallel: bool = False) -> None:
        """Open a step that is a block. Its code always runs, even if the step is recorded. See Stepping."""
        with self.opening:
            self._require_closed(name)
            number = self._ended_steps + 1
            committed = None if self._is_live else self._answers.step(number, name)
            if committed is None:
                return self._open(name, None, is_call=is_call, is_parallel=is_parallel)
            step = self._new_step(name, committed=committed, is_call=is_call, is_parallel=is_parallel)
            self._branch_attempt(step, committed.attempts[-1].number)
            self.open_step = step

    def _begin_step(self, name: str, attempts_max: int | None) -> None:
        """Open a step that is a function."""
        with self.opening:
            self._require_closed(name)
            self._open(name, attempts_max)

    def _open(self, name: str, attempts_max: int | None, **more: bool) -> None:
        """Open a step. Raises AttemptsExhausted if it was begun attempts_max times before."""
        number = self._ended_steps + 1
        earlier = () if self._is_live else self._answers.begun(number)
        begun = earlier[-1].number if earlier else 0
        if attempts_max is not None and begun >= attempts_max:
            raise AttemptsExhausted(
                f"step {number} ({name}) of run {self.id} was begun {begun} times, of at most {attempts_max}; "
                f"inspect it with `refold run steps {self.id}`, then resume it with more attempts, or fork it"
            )
        step = self._new_step(name, earlier=earlier, **more)
        self._begin_attempt(step, begun)
        self.open_step = step

    def _new_step(self, name: str, **more: Any) -> OpenStep:
        """Create the next step. Its state is read when it ends."""
        number = self._ended_steps + 1
        return OpenStep(number, name, snapshot(self._state, "run.state"), **more)

    def _begin_attempt(self, step: OpenStep, begun: int = 0) -> None:
        number = step.attempts[-1].number + 1 if step.attempts else begun + 1
        self._branch_attempt(step, number)
        step.keys = None
        try:
            self._sink.step_begun(step.number, step.name, number, step.attempt.started_at)
        except BaseException:  # the step is not open, so later calls are not part of it
            if not step.is_parallel:
                SCOPE.set(step.outer)
            raise

    def _branch_attempt(self, step: OpenStep, number: int) -> None:
        """Make everything started from here on belong to this attempt."""
        if step.is_parallel:  # the code that calls in it was started before
            step.attempts.append(PendingAttempt(number, self._chance.now_micros(), branch=self.branch))
            return
        attempt = PendingAttempt(number, self._chance.now_micros(), opened_in=here())
        scope = SCOPE.get()
        if not step.attempts:
            step.outer = scope
        step.attempts.append(attempt)
        SCOPE.set(Scope(self, attempt, scope.inside, attempt.branch))

    def _retry_wait(self, error: BaseException, trying: RetryPolicy) -> int | None:
        """End a failed attempt; return the wait before the next one, or None if the step ended with it."""
        attempt = self._require_open_step.attempt
        wait_ms = trying.wait_ms(attempt.number, error)
        is_ours = isinstance(error, RefoldError) and not isinstance(error, RecordedFailure)
        if wait_ms is None or is_ours or self._answers.departure is not None:
            self.end_step(error)
            return None
        attempt.backoff_ms = wait_ms
        self._close_attempt(error)
        self._sink.attempt_failed(self._require_open_step.number, attempt)
        return wait_ms

    def _close_attempt(self, error: BaseException | None) -> None:
        step = self._require_open_step
        attempt = step.attempt
        if not attempt.is_closed:
            self._calling.close(attempt)
        attempt.ended_at = self._chance.now_micros()
        if error is not None:
            attempt.failure = failure_of(error, attempt.ended_at)
            self._become(loaded_json(step.before))

    def end_step(self, error: BaseException | None, result: bytes = NULL) -> None:
        """End the open step.

        Args:
            error: The error with which it ended, if any.
            result: Its result as JSON.

        Raises:
            InputError: The code raised nothing, but a call of the step is still in progress, or the step left a state
                that cannot be recorded. The step fails with this error.
            Departure: The code departed from the recording, and `error` is not that departure.
            Changed: The step repeated a committed one, and left another state than when that was recorded.
        """
        step = self._require_open_step
        if any(SCOPE.get().attempt is each for each in step.attempts):  # it may end in another context
            SCOPE.set(step.outer)
        if self._answers.departure is not None:
            self.left_step, self.open_step = step, None
            return self._depart(error)
        state = step.before
        problem: InputError | None = None
        if error is None:
            problem = self._calling.close(step.attempt)
            try:
                state = kept(self._state, "run.state")
            except InputError as unkept:
                problem = problem or unkept
        if problem is not None:
            error, state, result = problem, step.before, NULL
        self._close_attempt(error)
        if step.committed is not None:
            self._end_repeated(step, step.committed, error)
        else:
            self._commit(PendingStep(step.number, step.name, step.attempts, state, result, outcome_of(error),
                                        step.earlier))  # fmt: skip
        if problem is not None:
            raise problem

    def _commit(self, step: PendingStep) -> None:
        self.open_step = None
        self._ended_steps += 1
        self._sink.step_ended(step)

    def _end_repeated(self, step: OpenStep, committed: Step, error: BaseException | None) -> None:
        """End a block that repeated a committed step. It must have left the recorded state; else the code changed."""
        after = applied(decoded(step.before), committed.delta)
        self.open_step = None
        if error is None and not is_same(self._kept_state(), after):
            raise Changed(
                f"run {self.id}: the code of step {step.number} ({step.name}) leaves another state than when "
                "it was recorded; run it with the code of that time, or fork the run before this step"
            )
        self._become(loaded_json(encoded(after, "the run's state")))
        self._ended_steps += 1
        self._sink.step_reused(committed, after)
        self._part()

    def _part(self) -> None:
        """At the point where a fork diverges from its parent, continue with the state that its patch produces."""
        for fork in self._parted:
            if fork.at == self._ended_steps:
                state = applied(self._kept_state(), fork.changes)
                self._become(loaded_json(encoded(state, "the run's state")))
                self._sink.forked(fork.patch, state)

    def _depart(self, error: BaseException | None) -> None:
        """Raise the departure, unless it is being raised already: the agent's code may have caught it."""
        departure = self._answers.departure
        if departure is not None and error is not departure:
            raise departure from error

    @property
    def step_number(self) -> int:
        """The number of the open step, or of the next one."""
        return self._ended_steps + 1

    @property
    def _require_open_step(self) -> OpenStep:
        if self.open_step is None:
            raise InputError(f"run {self.id}: no step is open")
        return self.open_step

    def _require_closed(self, name: str) -> None:
        require_open(self, name)
        end_abandoned(self)
        end_parallel(self, f"step {name}")
        if self.open_step is not None:
            still = f"step {self.open_step.number} ({self.open_step.name}) is still open"
            raise InputError(f"run {self.id}: {still}; end it before {name} begins")

    def _kept_state(self) -> Plain:
        """Return the state as it is recorded."""
        return decoded(kept(self._state, "run.state"))

    def _become(self, state: dict[str, Any]) -> None:
        """Replace the content of the state dict. The object stays, because the agent's code may hold a reference."""
        self._state.clear()
        self._state.update(state)
