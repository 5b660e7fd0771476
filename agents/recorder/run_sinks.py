"""Sinks for a run's record: a log, or, in a replay, memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import msgspec

from refold.agents.journal.chain import run_hash
from refold.agents.journal.record import Attempt, Failure, Outcome, Plain, Recording, Step
from refold.agents.journal.repeated_bodies import BodyWriter
from refold.agents.recorder.observations import (
    Seal,
    attempt_failed,
    calls_answered,
    run_begun,
    run_ended,
    run_entity,
    step_begun,
    step_ended,
    step_entity,
)
from refold.agents.recorder.step_assembler import PendingAttempt, PendingCall, PendingStep, StepAssembler
from refold.agents.recorder.writer import DirectWriter, RecordingFailed, Writer
from refold.agents.recordings.durable_calls import answered_key
from refold.agents.redaction.redactor import Redact
from refold.avro.observation import Source
from refold.streams.client import Log


class RunSink(Protocol):
    """Receives everything that a run does, in order."""

    def step_begun(self, number: int, name: str, attempt: int, at: int) -> None:
        """An attempt of a step begins.

        Args:
            at: When it begins, in microseconds since 1970.
        """

    def call_ended(self, call: PendingCall) -> None:
        """A call ended, and its step continues."""

    def attempt_failed(self, number: int, attempt: PendingAttempt) -> None:
        """An attempt failed, and another follows."""

    def step_ended(self, step: PendingStep) -> None:
        """A step ended."""

    def step_reused(self, step: Step, state: Plain) -> None:
        """A recorded step was not run again; it left this state."""

    def forked(self, patch: Plain, state: Plain) -> None:
        """From here on the run is a fork, which continues with this state."""

    def await_written(self) -> None:
        """Return when everything is written. The caller makes it durable with its next write."""

    def ended(self, outcome: Outcome, output: Plain, failure: Failure | None, at: int) -> str:
        """The run ended. Returns its hash.

        Args:
            at: When the run ended, in microseconds since 1970.
        """

    def departed(self, failure: Failure, at: int) -> None:
        """The code departed from the recording, so the run cannot continue. This ends the sink."""


class MemorySink:
    """Collects what a run did, as a Recording."""

    def __init__(self, head: Recording, assembler: StepAssembler, redact: Redact) -> None:
        self._recording = head
        self._assembler = assembler
        self._redact = redact
        self._steps: list[Step] = []

    def step_begun(self, number: int, name: str, attempt: int, at: int) -> None:
        """Do nothing: the step is added when it ends."""

    def call_ended(self, call: PendingCall) -> None:
        """Do nothing: the call is added with its step."""

    def attempt_failed(self, number: int, attempt: PendingAttempt) -> None:
        """Do nothing: the attempt is added with its step."""

    def step_ended(self, step: PendingStep) -> None:
        """Add the step."""
        self._steps.append(self._assembler.step(step))

    def step_reused(self, step: Step, state: Plain) -> None:
        """Add the recorded step."""
        self._steps.append(step)
        self._assembler.reuse(step, state)

    def forked(self, patch: Plain, state: Plain) -> None:
        """Continue the chain as a fork."""
        self._assembler.forked(patch, state)

    def await_written(self) -> None:
        """Do nothing: nothing is durable."""

    def ended(self, outcome: Outcome, output: Plain, failure: Failure | None, at: int) -> str:
        """End the recording, and return its hash."""
        self._recording = _ended_recording(
            self.recording, self._assembler, outcome, self._redact(output), self._assembler.failure(failure), at
        )
        return self._recording.hash

    def departed(self, failure: Failure, at: int) -> None:
        """End the recording as failed."""
        self.ended("failed", None, failure, at)

    @property
    def recording(self) -> Recording:
        """Return what the run did so far."""
        return msgspec.structs.replace(self._recording, steps=tuple(self._steps))


class _StepBegin(NamedTuple):
    """An attempt of a step that begins, as it will be observed."""

    number: int
    patch: dict[str, Any]
    causes: tuple[str, ...]
    at: int


class LogSink:
    """Writes a run into a log, in parallel with the agent.

    Every observation is caused by the one before it in the same step, a step's first one by the run's. Reads of other
    entities are among the causes of the step's end.

    A step's begin is held back until something else must be written or made durable. So it is written at the latest
    when the agent's thread has no more work for the writer's thread. If the step ended before that, begin and end are
    one observation.
    """

    def __init__(
        self,
        log: Log,
        head: Recording,
        entry: str,
        attempt: int,
        seq: Iterator[int],
        assembler: StepAssembler,
        redact: Redact,
        seal: Seal,
        class_of: Callable[[Recording], str],
        *,
        is_at_once: bool = False,
    ) -> None:
        """Create the sink of one run.

        Args:
            log: The log.
            head: The run's head, as it is recorded.
            entry: The name of the agent's function.
            attempt: How often the run was begun, including this time.
            seq: The next sequence numbers of the run's source.
            assembler: Turns what the run did into records.
            redact: The run's redactor.
            seal: Seals payloads.
            class_of: Returns the retention class of the ended run.
            is_at_once: Whether every write is done in the calling thread, where its errors are raised.
        """
        self._log = log
        self._head = head
        self._assembler = assembler
        self._redact = redact
        self._seal = seal
        self._class_of = class_of
        self._seq = seq
        self._steps: list[Step] = []
        self._bodies = BodyWriter()
        self._is_resumed = attempt > 1
        self._begun = ""
        self._hash = ""
        self._last = ""
        self._at = 0
        self._pending_begin: _StepBegin | None = None
        self._answered: list[PendingCall] = []
        self._has_answered = False
        self._writer: Writer | DirectWriter = (
            DirectWriter(self._durable) if is_at_once else Writer(self._durable, head.run)
        )
        self._writer.put(lambda: self._begin(entry, attempt))

    @property
    def last(self) -> str:
        """The id of the run's last written observation."""
        return self._last or self._begun

    def begun(self) -> None:
        """Return when the run's begin is written, so that it survives this process. It becomes durable soon, and before
        anything that is made durable after it.

        Raises:
            RecordingFailed: It cannot be written. The sink has ended.
        """
        try:
            self.await_written()
        except BaseException:
            with contextlib.suppress(RecordingFailed):
                self._writer.close()
            raise

    def step_begun(self, number: int, name: str, attempt: int, at: int) -> None:
        """Record the begin. Written soon."""
        self._writer.put(lambda: self._observe_step_begin(number, name, attempt, at))

    def call_ended(self, call: PendingCall) -> None:
        """Record the call. Written soon, unless its step ends before."""
        self._writer.put(lambda: self._answered.append(call))

    def attempt_failed(self, number: int, attempt: PendingAttempt) -> None:
        """Record the attempt. Written soon."""
        self._writer.put(lambda: self._observe_failed_attempt(number, attempt))

    def step_ended(self, step: PendingStep) -> None:
        """Record the end. Written soon."""
        self._writer.put(lambda: self._observe_step_end(step))

    def step_reused(self, step: Step, state: Plain) -> None:
        """Do nothing else than continue the chain: the step is already in the log."""
        self._writer.put(lambda: self._add_reused_step(step, state))

    def forked(self, patch: Plain, state: Plain) -> None:
        """Continue as a fork; the run's first observation already says so."""
        self._writer.put(lambda: self._assembler.forked(patch, state))

    def flush(self) -> None:
        """Return when everything is durable.

        Raises:
            RecordingFailed: Something cannot be written or made durable.
        """
        self._writer.flush()

    def await_written(self) -> None:
        """As RunSink. If its caller does not flush, the records still become durable soon.

        Raises:
            RecordingFailed: Something cannot be written.
        """
        self._writer.await_written(self._hand_over)

    def ended(self, outcome: Outcome, output: Plain, failure: Failure | None, at: int) -> str:
        """Record the end, durable on return."""
        try:
            self._writer.put(lambda: self._observe_end(outcome, output, failure, at))
        finally:
            self._writer.close()
        return self._hash

    def departed(self, failure: Failure, at: int) -> None:
        """Record that a fork failed. A resumed run stays as it was, so that the right code can resume it."""
        if not self._is_resumed:
            self.ended("failed", None, failure, at)
            return
        self._writer.close()

    def _begin(self, entry: str, attempt: int) -> None:
        patch = run_begun(self._head, entry, attempt, self._seal)
        at = self._head.started_at if attempt == 1 else None
        self._begun = self._observe(run_entity(self._head.run), patch, "", (), at)

    def _durable(self) -> None:
        self._write_pending()
        self._log.flush()

    def _hand_over(self) -> None:
        self._write_pending()
        with self._log.lock:
            self._log.port.publish()  # if the log refuses a record, that is raised here and ends the recording

    def _observe_step_begin(self, number: int, name: str, attempt: int, at: int) -> None:
        self._write_pending()
        patch = step_begun(self._head.run, self._head.agent, number, name, attempt, at)
        causes = (self._last,) if attempt > 1 and self._last else (self._begun,)
        self._pending_begin = _StepBegin(number, patch, causes, at)

    def _write_pending(self) -> None:
        """Write the begin and the calls that are held back. All are of one step, because its end drops the calls."""
        begin, self._pending_begin = self._pending_begin, None
        answered, self._answered = self._answered, []
        number, patch, causes, at = (0, {}, (self._last,), 0) if begin is None else begin
        if answered:
            calls = {answered_key(each): self._bodies.shortened(self._assembler.call(each)) for each in answered}
            number = next(each.step_and_attempt[0] for each in answered if each.step_and_attempt is not None)
            patch = {**patch, **calls_answered(self._head.run, number, calls, self._seal)}
            at = max(at, *(each.started_at + round(each.duration_ms * 1000) for each in answered))
            self._has_answered = True
        if patch:
            self._last = self._observe(step_entity(self._head.run, number), patch, str(number), causes, at)

    def _observe_failed_attempt(self, number: int, attempt: PendingAttempt) -> None:
        self._answered = []
        self._write_pending()
        patch = attempt_failed(self._head.run, number, self._shorten(self._assembler.attempt(attempt)), self._seal)
        self._last = self._observe(
            step_entity(self._head.run, number),
            patch,
            str(number),
            (self._last,),
            attempt.ended_at,
            self._cleared_fields(),
        )

    def _observe_step_end(self, pending: PendingStep) -> None:
        step = self._assembler.step(pending)
        before = self._steps[-1] if self._steps else None
        patch = step_ended(self._head.run, step, before, self._shorten(step.attempts[-1]), self._seal)
        self._bodies.ended(step)
        read = [each for call in step.calls if call.asked.kind == "read" and call.failure is None
                for each in call.answer["observations"]]  # fmt: skip
        self._answered = []
        begin, self._pending_begin = self._pending_begin, None
        causes = dict.fromkeys([*([self._last] if begin is None else begin.causes), *read])
        if begin is not None:
            patch = {**begin.patch, **patch}
        self._last = self._observe(
            step_entity(self._head.run, step.number),
            patch,
            str(step.number),
            tuple(causes),
            step.attempts[-1].ended_at,
            self._cleared_fields(),
        )
        self._steps.append(_without_content(step))

    def _shorten(self, attempt: Attempt) -> Attempt:
        return msgspec.structs.replace(attempt, calls=tuple(map(self._bodies.shortened, attempt.calls)))

    def _cleared_fields(self) -> tuple[str, ...]:
        """Return the fields that the end of an attempt clears, because its journal holds all its calls."""
        is_needed, self._has_answered = self._has_answered or self._is_resumed, False
        return ("answered",) if is_needed else ()

    def _add_reused_step(self, step: Step, state: Plain) -> None:
        self._assembler.reuse(step, state)
        self._steps.append(_without_content(step))

    def _observe_end(self, outcome: Outcome, output: Plain, failure: Failure | None, at: int) -> None:
        head = msgspec.structs.replace(self._head, steps=tuple(self._steps))
        found = _ended_recording(
            head, self._assembler, outcome, self._redact(output), self._assembler.failure(failure), at
        )
        found = msgspec.structs.replace(found, retention_class=self._class_of(found))
        self._hash = found.hash
        self._observe(run_entity(found.run), run_ended(found, self._seal), "", (self._last or self._begun,), at)

    def _observe(
        self, entity: str, patch: dict[str, object], step: str, causes: tuple[str, ...], at: int | None,
        cleared: tuple[str, ...] = (),
    ) -> str:  # fmt: skip
        """Observe with the time at which it happened, because it is written later. Times never decrease, even if the
        clock does."""
        source = Source(self._head.agent, self._head.run, step, "", next(self._seq))
        if at is None:
            return self._log.observe(entity, patch, source=source, causes=causes)
        self._at = max(self._at, at)
        return self._log.observe(entity, patch, source=source, causes=causes, observed_at=self._at, cleared=cleared)


def _without_content(step: Step) -> Step:
    """Return a step without its content: a long run would otherwise hold all of its requests in memory."""
    return msgspec.structs.replace(step, attempts=(), delta=(), result=None)


def _ended_recording(
    head: Recording, assembler: StepAssembler, outcome: Outcome, output: Plain, failure: Failure | None, at: int
) -> Recording:
    whole = run_hash(assembler.previous, outcome, output, failure)
    return msgspec.structs.replace(
        head, status="ended", outcome=outcome, output=output, failure=failure, ended_at=at, hash=whole
    )
