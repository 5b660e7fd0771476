"""The actions of a fork in a confined process: one line of JSON each, which its starter writes into the log.

1. `JournalSink` is the confined run's sink. Each action of the run becomes a line as soon as it is done. Lines are raw:
   the redactor and the vault are applied outside.
2. A nested run writes its begin, with its head, and then its lines with its id (agents/confined/child.py).
3. `JournalRecord` passes the lines in order to sinks of the log, one for each run. Hashes are computed there, including
   the hash of a nested run in the call that began it. A process that was killed leaves the lines of its actions until
   then; an incomplete line is ignored.

Lines are data: nothing in them names code.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from io import FileIO

import msgspec

from refold.agents.journal.record import Failure, Outcome, Plain, Recording, Step
from refold.agents.recorder.children import RunOptions
from refold.agents.recorder.context import ExecutionBranch
from refold.agents.recorder.run_sinks import RunSink
from refold.agents.recorder.step_assembler import PendingAttempt, PendingCall, PendingStep
from refold.avro.errors import InputError


class StepBegun(msgspec.Struct, tag=True):
    """See RunSink.step_begun."""

    number: int
    name: str
    attempt: int
    at: int


class AttemptFailed(msgspec.Struct, tag=True):
    """See RunSink.attempt_failed."""

    number: int
    made: PendingAttempt


class StepEnded(msgspec.Struct, tag=True):
    """See RunSink.step_ended."""

    made: PendingStep


class Taken(msgspec.Struct, tag=True):
    """See RunSink.step_reused."""

    step: Step
    state: Plain


class Parted(msgspec.Struct, tag=True):
    """See RunSink.forked."""

    patch: Plain
    state: Plain


class RunEnded(msgspec.Struct, tag=True):
    """See RunSink.ended and, if it departed from the recording, RunSink.departed."""

    outcome: Outcome
    output: Plain
    failure: Failure | None
    at: int
    is_departure: bool = False


OwnLine = StepBegun | AttemptFailed | StepEnded | Taken | Parted | RunEnded


class ChildBegun(msgspec.Struct, tag=True):
    """A nested run begins.

    Attributes:
        head: The raw head, with its id and its parent's.
    """

    head: Recording
    given: RunOptions


class OfChild(msgspec.Struct, tag=True):
    """An action of a nested run."""

    run: str
    did: OwnLine


Line = OwnLine | ChildBegun | OfChild
_turn = threading.Lock()
BeginChild = Callable[[Recording, RunOptions], RunSink]
"""Begins a nested run in the log, and returns its sink."""


class JournalSink(RunSink):
    """Passes each action of a run to `say`."""

    def __init__(self, say: Callable[[OwnLine], None]) -> None:
        self._say = say

    def step_begun(self, number: int, name: str, attempt: int, at: int) -> None:
        """Written at once."""
        self._say(StepBegun(number, name, attempt, at))

    def call_ended(self, call: PendingCall) -> None:
        """Do nothing: the call is written when its step ends, because a killed fork keeps only whole steps."""

    def attempt_failed(self, number: int, attempt: PendingAttempt) -> None:
        """Written at once."""
        self._say(AttemptFailed(number, attempt))

    def step_ended(self, step: PendingStep) -> None:
        """Written at once."""
        self._say(StepEnded(step))

    def step_reused(self, step: Step, state: Plain) -> None:
        """Written at once."""
        self._say(Taken(step, state))

    def forked(self, patch: Plain, state: Plain) -> None:
        """Written at once."""
        self._say(Parted(patch, state))

    def await_written(self) -> None:
        """Do nothing: written lines remain, even if this process is killed."""

    def ended(self, outcome: Outcome, output: Plain, failure: Failure | None, at: int) -> str:
        """Write the end at once. Its hash is computed by the process that has the log."""
        self._say(RunEnded(outcome, output, failure, at))
        return ""

    def departed(self, failure: Failure, at: int) -> None:
        """Written at once."""
        self._say(RunEnded("failed", None, failure, at, is_departure=True))


def write_line(out: FileIO, thing: object) -> None:
    """Write a line, or an answer. The branch of the run that made a call is left out: the order of lines shows it.

    Runs in several threads write to one file in memory (memfd). The kernel does not order the writes of threads there,
    so without a lock they would overwrite each other.

    Args:
        out: The file.
        thing: What to write as JSON.
    """
    left = memoryview(msgspec.json.encode(thing, enc_hook=_left_out) + b"\n")
    with _turn:
        while left:
            left = left[out.write(left) :]


def _left_out(thing: object) -> None:
    if not isinstance(thing, ExecutionBranch):
        raise NotImplementedError(f"{type(thing).__name__} cannot be encoded")


class JournalRecord:
    """Writes the lines of a fork into the log.

    Args:
        run, sink: The run and the sink of the fork.
        begin_child: Begins a nested run in the log.
    """

    def __init__(self, run: str, sink: RunSink, begin_child: BeginChild) -> None:
        self._run = run
        self._begin_child = begin_child
        self._open: dict[str, RunSink] = {run: sink}
        self._hashes: dict[str, str] = {}

    @property
    def has_ended(self) -> bool:
        """Whether the fork has ended."""
        return self._run not in self._open

    def write(self, lines: Iterable[bytes]) -> None:
        """Write the lines, in order.

        Raises:
            InputError: A line is invalid, or a run cannot begin.
        """
        decoder = msgspec.json.Decoder(Line, dec_hook=lambda kind, _: kind())
        for line in lines:
            try:
                did = decoder.decode(line)
                match did:
                    case ChildBegun(head, given):
                        if head.caller not in self._open:
                            raise InputError(f"a nested run of {head.caller}, which is not a run of the fork")
                        self._open[head.run] = self._begin_child(head, given)
                    case OfChild(run, of_child):
                        self._write(run, of_child)
                    case _:
                        self._write(self._run, did)
            except (msgspec.DecodeError, RecursionError, KeyError) as error:
                raise InputError(f"the confined process sent an invalid message: {error}") from None

    def depart(self, failure: Failure, at: int) -> None:
        """End all runs that have not ended, innermost first.

        Args:
            failure: Why they end.
            at: When they end, in microseconds since 1970.
        """
        while self._open:
            _, sink = self._open.popitem()
            sink.departed(failure, at)

    def _write(self, run: str, did: OwnLine) -> None:
        sink = self._open[run]
        match did:
            case StepBegun(number, name, attempt, at):
                sink.step_begun(number, name, attempt, at)
            case AttemptFailed(number, failed):
                sink.attempt_failed(number, self._with_run_hashes(failed))
            case StepEnded(made):
                made.attempts = [self._with_run_hashes(each) for each in made.attempts]
                sink.step_ended(made)
            case Taken(step, state):
                sink.step_reused(step, state)
            case Parted(patch, state):
                sink.forked(patch, state)
            case RunEnded(outcome, output, failure, at, is_departure):
                del self._open[run]
                if is_departure and failure is not None:
                    sink.departed(failure, at)
                else:
                    self._hashes[run] = sink.ended(outcome, output, failure, at)

    def _with_run_hashes(self, attempt: PendingAttempt) -> PendingAttempt:
        """Insert the hashes of the runs that the attempt's calls began."""
        for call in attempt.made:
            if call.kind == "run" and call.failure is None:
                answer = msgspec.json.decode(call.answer)
                if "hash" in answer:
                    call.answer = msgspec.json.encode({**answer, "hash": self._hashes[answer["run"]]})
        return attempt
