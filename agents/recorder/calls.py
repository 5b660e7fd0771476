"""The calls of a run: answered from its recording, or made. Both are recorded.

1. The request is encoded at once, so changes that the agent makes to its objects later do not alter what is recorded.
2. If the run has a recording, that is asked first (recorder/answers.py). Its answer is stored as recorded and returned
   to the code as it was then; a recorded failure is raised again.
3. Otherwise the call is made, retried if allowed, and its answer encoded at once. A write tool is sent by the ledger,
   once for its key, and only when everything before it is durable: one sync makes that and the claim durable.

A call outside any step forms its own step, which has no other call. Calls that threads and tasks make there, in
parallel with the run's own code, are in one step (recorder/parallel_calls.py). Calls that a tool or a model's client
makes in turn are part of its own answer: they are made and not recorded. A write among them still uses the ledger, and
if the run has a recording its policy is checked. A step ends when its calls have ended. A call still in progress then,
in another task or thread, makes the step fail. Its result is not recorded, and so not returned to the code either.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

from refold.agents.capture.step_header import requests_of
from refold.agents.effects.keys import StepKeys
from refold.agents.journal.record import Effect, Kind, Plain, Retry
from refold.agents.journal.volatile import WHOLE, Volatile, VolatileRequest
from refold.agents.recorder.answers import Answers, CallSite
from refold.agents.recorder.context import SCOPE, Order, branch_of, here, in_thread, require_open
from refold.agents.recorder.failures import RecordedFailure, Unfinished, failure_of, raised, waited_s
from refold.agents.recorder.open_call import OffLoop, OpenCall, OpenRun
from refold.agents.recorder.parallel_calls import step_of_call
from refold.agents.recorder.plain import Shape, decoded, encoded, shape_of
from refold.agents.recorder.run_backend import Nondeterminism, ReadView, RunBackend
from refold.agents.recorder.step_assembler import PendingAttempt, PendingCall
from refold.agents.recorder.steps import CallBlock, OpenStep, Stepping
from refold.agents.recorder.streamed_answers import (
    Inside,
    ReplayedStream,
    StreamRecorder,
    awaited,
    awaiting,
    is_async_client,
    is_lazy,
    was_lazy,
)  # fmt: skip
from refold.agents.recorder.tools import RetryPolicy, Tool
from refold.agents.redaction.redactor import Redact, as_of_run
from refold.avro.errors import InputError, RefoldError

Args: TypeAlias = tuple[Any, ...]
_Begun: TypeAlias = tuple[OpenStep, PendingCall]
_JSON, _ONCE = Shape(None, "an answer"), RetryPolicy()
_ASKED_OUTSIDE: frozenset[Kind] = frozenset({"tool", "model"})


class CallRecorder:
    """Makes the calls of one run."""

    def __init__(
        self, run: Stepping, answers: Answers, backend: RunBackend, chance: Nondeterminism, redact: Redact,
        await_written: Callable[[], None], ended: Callable[[PendingCall], None], *, asks_answers: bool,
    ) -> None:  # fmt: skip
        """Create it.

        Args:
            backend: The log, or a replay's replacement.
            await_written: Returns when all records are written; they are durable with the next flush.
            ended: Called for each ended call of open steps.
            asks_answers: Whether `answers` is asked about a call: a recording may answer it, or a guard refuse it.
        """
        self._run = run
        self._answers = answers
        self._backend = backend
        self._chance = chance
        self._redact = as_of_run(redact)
        self._await_written = await_written
        self._ended = ended
        self._asks_answers = asks_answers
        self._lock = threading.Lock()
        self._beside_loop = OffLoop()

    def close(self, attempt: PendingAttempt) -> Unfinished | None:
        """End an attempt's calls. Return the error naming any in progress, of which no more is recorded; else None."""
        if attempt.is_closed:
            return None
        with self._lock:
            attempt.is_closed = True
            attempt.made.sort(key=_order)
            for call in attempt.made:
                if call.is_open and call.so_far is not None:
                    self._settle_call(call, encoded(call.so_far(), "a response"))
            left = [call for call in attempt.made if call.is_open]
            for call in left:
                error = self._unfinished_error(call)
                call.failure = failure_of(error, self._chance.now_micros())
                call.duration_ms = (self._chance.monotonic_s() - call.began_s) * 1000
                call.is_open = False
        return self._unfinished_error(*left) if left else None

    def model(
        self, client: Callable[..., Any], args: Args, kwargs: dict[str, Any], returns: Any, volatile: Volatile = WHOLE
    ) -> Any:
        """Return a model's answer; an awaitable if the client is async. The arguments are those of RunCalls.model."""
        name = getattr(client, "__qualname__", type(client).__qualname__)
        shape = shape_of(client, returns, f"the model client {name}")
        kwargs = {**kwargs, **self._answers.arguments(self._run.step_number, "model", name)}
        request = volatile.asking({"args": list(args), "kwargs": kwargs} if args else {"kwargs": kwargs})
        return self._call("model", name, "", request, shape, _ONCE, lambda step, _: client(*args, **kwargs),
                          is_async=is_async_client(client))  # fmt: skip

    def tool(self, tool: Tool, args: Args, kwargs: dict[str, Any]) -> Any:
        """Return a tool's answer; an awaitable if the tool is async."""
        kwargs = {**kwargs, **self._answers.arguments(self._run.step_number, "tool", tool.name)}
        request = tool.volatile.asking(tool.request(args, kwargs))
        if tool.effect == "read":
            return self._call("tool", tool.name, "read", request, tool.shape, tool.trying,
                              lambda step, _: tool.function(*args, **kwargs), is_async=tool.is_async)  # fmt: skip
        send = self._send_write_async if tool.is_async else self._send_write
        return self._call("tool", tool.name, "write", request, tool.shape, _ONCE,
                          lambda step, _: send(step, _, tool, args, kwargs), is_async=tool.is_async)  # fmt: skip

    def note(self, kind: Kind, name: str, request: Plain) -> None:
        """Record something that the code states itself."""
        self._call(kind, name, "", request, _JSON, _ONCE, lambda step, _: None, is_said=True)

    def value(self, kind: Kind, give: Callable[[], Any]) -> Any:
        """Return a clock reading, a random number or a generated id."""
        return self._call(kind, "", "", None, _JSON, _ONCE, lambda step, _: give())

    def read(self, entity: str, at: Any) -> ReadView:
        """Read an entity's state."""
        fields: list[Mapping[str, Any]] = []

        def look(step: OpenStep, call: PendingCall) -> Plain:
            found = dict(self._backend.read(entity, at))
            fields.append(found.pop("fields"))
            return found

        request = None if at is None else {"at": str(at)}
        answer = self._call("read", entity, "read", request, _JSON, _ONCE, look)
        values = fields[0] if fields else self._backend.fields(entity, answer)
        return ReadView(entity, values, answer["version"], answer["state_hash"], answer["cut"])

    def observe(self, entity: str, patch: Mapping[str, Any], given: Mapping[str, Any]) -> str:
        """As RunCalls.observe."""

        def record(step: OpenStep, _: PendingCall) -> str:
            read = [each for call in step.made if call.kind == "read" and not call.is_open and call.failure is None
                    for each in decoded(call.answer).get("observations", ())]  # fmt: skip
            shown = self._redact(dict(patch))
            return self._backend.observe(entity, shown, step.number, tuple(dict.fromkeys(read)), given)

        return str(self._call("observe", entity, "write", {"patch": dict(patch), **given}, _JSON, _ONCE, record))

    # One call

    def _call(
        self, kind: Kind, name: str, effect: Effect, request: Plain, shape: Shape, trying: RetryPolicy,
        ask: Callable[[OpenStep, PendingCall], Any], *, is_async: bool = False, is_said: bool = False,
    ) -> Any:  # fmt: skip
        title = f"{kind}: {name}" if name else kind
        is_inside, step = self._enclosing_step(title)
        if is_inside and is_said:
            raise InputError(f"{title}: called inside a tool, whose result is recorded as a whole; call it in the step")
        make = self._answer_call_async if is_async else self._answer_call
        call = partial(make, kind, name, effect, request, shape, trying, ask, is_said, is_inside)
        if is_inside or (step is not None and not step.is_parallel):
            return call(None)
        if is_async:
            return self._in_step(title, call)
        if step is not None:
            return call(None)
        block = CallBlock(self._run, title)
        with block:
            return call(block)

    def _enclosing_step(self, title: str) -> tuple[bool, OpenStep | None]:
        """Return whether a call is part of another one, and the step it is in. Raises if it belongs to no step."""
        require_open(self._run, title)
        is_inside = self in SCOPE.get().inside
        step = self._run.open_step if is_inside else step_of_call(self._run, title)
        self._require_step(step, title)
        if step is not None and step.is_call and not is_inside:
            raise InputError(
                f"run {self._run.id}: {title} is called while step {step.number} ({step.name}), which is that one "
                "call's, is under way: open a step around calls that are made at once"
            )
        return is_inside, step

    async def _in_step(self, title: str, call: Callable[[CallBlock | None], Awaitable[Any]]) -> Any:
        """Make a call in the step in which it is awaited, even if a task was started for it."""
        if step_of_call(self._run, title) is not None:
            return await call(None)
        block = CallBlock(self._run, title)
        async with block:
            return await call(block)

    def _answer_call(
        self, kind: Kind, name: str, effect: Effect, request: Plain, shape: Shape, trying: RetryPolicy,
        ask: Callable[[OpenStep, PendingCall], Any], is_said: bool, is_inside: bool, block: CallBlock | None,
    ) -> Any:  # fmt: skip
        step, call = self._begin(kind, name, effect, request, is_inside)
        if not is_said and self._take_recorded_answer(step, call, is_inside):
            return self._served(call, shape, block)
        inside = partial(self._call_context, kind, None if is_inside else f"{self._run.id}#{step.number}")
        while True:
            try:
                with inside():
                    answer = ask(step, call)
                if is_lazy(answer) and not is_inside:
                    return self._deferred_answer(call, answer, shape, block, inside)
                return self._end_with_answer(call, answer, shape.recorded(answer))
            except BaseException as error:  # recorded, then raised again or retried
                wait_ms = self._retry_wait(call, error, trying)
                if wait_ms is None:
                    raise
                self._chance.sleep_s(wait_ms / 1000)

    async def _answer_call_async(
        self, kind: Kind, name: str, effect: Effect, request: Plain, shape: Shape, trying: RetryPolicy,
        ask: Callable[[OpenStep, PendingCall], Awaitable[Any]], is_said: bool, is_inside: bool, block: CallBlock | None,
    ) -> Any:  # fmt: skip
        step, call = self._begin(kind, name, effect, request, is_inside)
        if self._take_recorded_answer(step, call, is_inside):
            if not was_lazy(decoded(call.answer)) and (wait_s := waited_s(call.failure, call.duration_ms)):
                await asyncio.sleep(wait_s)  # awaited even if the wait is 0, as in a replay
            return self._served(call, shape, block)
        inside = partial(self._call_context, kind, None if is_inside else f"{self._run.id}#{step.number}")
        while True:
            try:
                with inside():
                    answer = await ask(step, call)
                if is_lazy(answer) and not is_inside:
                    return self._deferred_answer(call, answer, shape, block, inside)
                data = await self._beside_loop.done(partial(shape.recorded, answer), answer)
                return self._end_with_answer(call, answer, data)
            except BaseException as error:  # recorded, then raised again or retried
                wait_ms = self._retry_wait(call, error, trying)
                if wait_ms is None:
                    raise
                await self._chance.sleep_async(wait_ms / 1000)

    @contextmanager
    def _call_context(self, kind: Kind, step: str | None) -> Iterator[None]:
        """Mark calls made in this context as part of this call. step: the one that records it, RUN#N; None if none."""
        if kind not in _ASKED_OUTSIDE:
            yield
            return
        scope = SCOPE.get()
        token = SCOPE.set(scope._replace(inside=(*scope.inside, self)))
        try:
            with requests_of(step if kind == "model" else ""):
                yield
        finally:
            SCOPE.reset(token)

    def _require_step(self, step: OpenStep | None, what: str) -> None:
        """Raise Unfinished if the caller continues in a thread or task that was started in an ended attempt."""
        scope = SCOPE.get()
        attempt = scope.attempt
        if scope.run is not self._run or attempt is None or (step is not None and attempt is step.attempt):
            return
        if attempt.opened_in != here():  # otherwise the attempt ended in another context than this one
            raise Unfinished(f"run {self._run.id}: {what} was called in a step that has ended")

    def _begin(self, kind: Kind, name: str, effect: Effect, request: Plain, is_inside: bool) -> _Begun:
        what = f"what {name} was called with" if name else kind
        asking = request if isinstance(request, VolatileRequest) else VolatileRequest(request)
        call = PendingCall(kind, name, encoded(asking.request, what), effect, started_at=self._chance.now_micros(),
                    ignored=asking.ignored, found_by=encoded(asking.found_by, f"the key of {name}"))  # fmt: skip
        call.began_s = self._chance.monotonic_s()
        with self._lock:
            step = self._run.open_step
            if step is None or step.attempt.is_closed:
                raise Unfinished(f"run {self._run.id}: {name or kind} was called in a step that has ended")
            if not is_inside:
                branch = branch_of(SCOPE.get())
                attempt = step.attempt
                branch = branch if branch is not None and branch.root is attempt.branch else attempt.branch
                call.order, call.branch = branch.next(), branch.name
                attempt.made.append(call)
                if step.committed is None and not step.is_call:
                    call.step_and_attempt = (step.number, attempt.number)
        return step, call

    def _take_recorded_answer(self, step: OpenStep, call: PendingCall, is_inside: bool) -> bool:
        """Use the recorded answer, if there is one. Return whether there is."""
        if not self._asks_answers or (is_inside and call.effect != "write"):
            return False
        request = call.asked(self._redact)
        found = self._answers.call(CallSite(step.number, step.name, step.attempt.number, call.branch), request)
        if found is None:
            return False
        if not (request.is_whole and found.asked.is_whole):  # it is the same call, so its recorded request is kept
            call.request, call.ignored = encoded(found.asked.request, "a recorded request"), found.asked.ignored
            call.found_by = encoded(found.asked.found_by, "a recorded key")
        call.answer, call.failure = encoded(found.answer, "a recorded answer"), found.failure
        call.retries, call.key, call.source = list(found.retries), found.key, "recorded"
        call.started_at, call.duration_ms, call.is_open = found.started_at, found.duration_ms, False
        return True

    def _report_end(self, call: PendingCall) -> None:
        """Pass an ended call on, to be made durable by itself. The turn is held, so that its step cannot end before."""
        if call.step_and_attempt is not None:
            self._ended(call)

    @staticmethod
    def _served(call: PendingCall, shape: Shape, block: CallBlock | None) -> Any:
        failed = None if call.failure is None else raised(call.failure)
        answer = decoded(call.answer)
        if was_lazy(answer):
            if block is not None:
                block.hold()
            ended = _do_nothing if block is None else block.leave
            return ReplayedStream(shape.served, failed, ended, waited_s(call.failure, call.duration_ms)).given(answer)
        if failed is not None:
            raise failed
        return shape.served(answer)

    def _end_with_answer(self, call: PendingCall, answer: Any, data: bytes) -> Any:
        duration_ms = (self._chance.monotonic_s() - call.began_s) * 1000
        with self._lock:
            self._require_open(call)
            call.answer, call.duration_ms, call.is_open = data, duration_ms, False
            self._report_end(call)
        return answer

    def _retry_wait(self, call: PendingCall, error: BaseException, trying: RetryPolicy) -> int | None:
        """Record a failure; return the wait before the call is retried, or None if it failed finally."""
        tool = call.name if call.kind == "tool" else ""
        failure = failure_of(error, self._chance.now_micros(), tool=tool)
        is_ours = isinstance(error, RefoldError) and not isinstance(error, RecordedFailure)
        wait_ms = None if is_ours else trying.wait_ms(len(call.retries) + 1, error)
        with self._lock:
            if not call.is_open:
                return None
            if wait_ms is None:
                call.duration_ms = (self._chance.monotonic_s() - call.began_s) * 1000
                call.failure, call.is_open = failure, False
                self._report_end(call)
            else:
                call.retries.append(Retry(attempt=len(call.retries) + 1, failure=failure, backoff_ms=wait_ms))
        return wait_ms

    def _deferred_answer(
        self, call: PendingCall, answer: Any, shape: Shape, block: CallBlock | None, inside: Inside
    ) -> Any:  # fmt: skip
        """Return the object for the code, if the answer arrives later: recorder/streamed_answers.py."""
        if block is not None:
            block.hold()
        tree: Callable[[Plain], Plain] = awaited if inspect.isawaitable(answer) else (lambda each: each)

        def ended(answer: Plain, error: BaseException | None) -> None:
            if error is not None:
                self._broken(call, encoded(tree(answer), "an answer"), error)
            elif call.is_open:
                self._end_answered(call, tree(answer))
            if block is not None:
                block.leave(error)

        def given(source: Any) -> Any:
            taking = StreamRecorder(
                source, call.name, lambda: self._chance.monotonic_s() - call.began_s, inside,
                require_open=partial(self._require_open, call), ended=ended,
            )  # fmt: skip
            call.so_far = lambda: tree(taking.tree("left"))
            return taking.given()

        def kept_as(found: Any) -> Any:
            if is_lazy(found):
                return given(found)
            self._require_open(call)
            ended(decoded(shape.recorded(found)), None)
            return found

        if inspect.isawaitable(answer):
            return awaiting(answer, inside, kept_as, lambda error: ended(None, error))
        return given(answer)

    def _require_open(self, call: PendingCall) -> None:
        if not call.is_open:
            raise self._unfinished_error(call)

    def _broken(self, call: PendingCall, so_far: bytes, error: BaseException) -> None:
        """Record an answer that ended with an error after its first pieces."""
        with self._lock:
            if call.is_open:
                call.answer, call.so_far = so_far, None
        self._end_with_failure(call, error)

    def _end_answered(self, call: PendingCall, answer: Plain) -> None:
        data = encoded(answer, "a response")
        with self._lock:
            if call.is_open:
                self._settle_call(call, data)
                self._report_end(call)

    def _end_with_failure(self, call: PendingCall, error: BaseException) -> None:
        self._retry_wait(call, error, _ONCE)

    def _settle_call(self, call: PendingCall, answer: bytes) -> None:
        call.answer, call.duration_ms = answer, (self._chance.monotonic_s() - call.began_s) * 1000
        call.is_open, call.so_far = False, None

    def _unfinished_error(self, *left: PendingCall) -> Unfinished:
        names = ", ".join(call.name or call.kind for call in left)
        return Unfinished(f"run {self._run.id}: a step ended before its calls ({names}): wait for them in the step")

    # For answers that arrive in pieces see recorder/open_call.py

    def arguments(self, name: str) -> Mapping[str, Plain]:
        """Return the arguments that a fork changes in requests of this name."""
        return self._answers.arguments(self._run.step_number, "model", name)

    def opened(self, kind: Kind, name: str, request: Plain) -> OpenCall:
        """Begin a call that ends later."""
        with self._begin_opened_call(kind, name, request) as (step, call, block, is_inside):
            is_recorded = self._take_recorded_answer(step, call, is_inside)
        return self._open(call, block, step, is_recorded=is_recorded)

    def opened_run(self, name: str, request: Plain) -> OpenRun:
        """Begin a call that is a nested run (recorder/children.py)."""
        if self in SCOPE.get().inside:
            raise InputError(
                f"run {self._run.id}: a run of {name} within it must begin in the run's own code, not in a tool or a "
                "model's client, whose result is recorded as a whole: begin it there with log.run, as a separate run"
            )
        with self._begin_opened_call("run", name, request) as (step, call, block, _):
            asked = call.asked(self._redact)
            site = CallSite(step.number, step.name, step.attempt.number)
            found = self._answers.call(site, asked) if self._asks_answers else None
            nth = sum(1 for each in [*step.made] if (each.kind, each.branch) == ("run", call.branch)) - 1
            failed = sum(1 for each in step.earlier if each.ended_at) + len(step.attempts) - 1
            self._await_written()
        opened = self._open(call, block, step, is_recorded=found is not None)
        return OpenRun(opened, found, site, failed, call.branch, nth, asked.hash)

    @contextmanager
    def _begin_opened_call(
        self, kind: Kind, name: str, request: Plain
    ) -> Iterator[tuple[OpenStep, PendingCall, CallBlock | None, bool]]:
        """Begin a call, in the open step or in its own step, which ends if this fails."""
        title = f"{kind}: {name}"
        is_inside, step = self._enclosing_step(title)
        block = CallBlock(self._run, title) if step is None and not is_inside else None
        if block is not None:
            block.__enter__()
        try:
            yield *self._begin(kind, name, "", request, is_inside), block, is_inside
        except BaseException as error:
            if block is not None:
                block.__exit__(type(error), error, None)
            raise

    def _open(self, call: PendingCall, block: CallBlock | None, step: OpenStep, *, is_recorded: bool) -> OpenCall:
        answer, fail = partial(self._end_answered, call), partial(self._end_with_failure, call)
        step_id = f"{self._run.id}#{step.number}"
        return OpenCall(
            call, block, step_id, is_recorded=is_recorded, answer=answer, fail=fail, beside_loop=self._beside_loop
        )  # fmt: skip

    # Write tools

    def _send_write(self, step: OpenStep, call: PendingCall, tool: Tool, args: Args, kwargs: dict[str, Any]) -> Any:
        self._await_written()
        arguments = self._prepare_request(step, call, tool)
        send = partial(tool.send, args, kwargs)
        redact = self._redact.for_answers_to(decoded(call.request))
        return tool.shape.served(self._backend.perform(tool, call.key, arguments, step.number, send, redact))

    async def _send_write_async(
        self, step: OpenStep, call: PendingCall, tool: Tool, args: Args, kwargs: dict[str, Any]
    ) -> Any:
        await in_thread(self._await_written)
        arguments = self._prepare_request(step, call, tool)
        send = partial(tool.send_async, args, kwargs)
        redact = self._redact.for_answers_to(decoded(call.request))
        found = await self._backend.perform_async(tool, call.key, arguments, step.number, send, redact)
        return tool.shape.served(found)

    def _prepare_request(self, step: OpenStep, call: PendingCall, tool: Tool) -> Plain:
        """Return the request to be sent, as it is recorded. Everything recorded before is written, after redaction."""
        request = call.asked(self._redact)
        with self._lock:
            if step.keys is None:
                keys = self._answers.keys(CallSite(step.number, step.name, step.attempt.number))
                step.keys = StepKeys(self._run.task, step.number, keys)
            call.key = step.keys.next(tool.name, request.counted)
        return request.request


def _do_nothing(error: BaseException | None) -> None:
    pass


def _order(call: PendingCall) -> Order:
    return call.order
