"""What a fork does in a confined process, one line of JSON each, and written into the log by the process that has it.

1. `JournalSink` is the confined run's sink. Each thing that the run did becomes a line as soon as it is done, raw: the
   redactor and the vault are applied outside.
2. `record` gives the lines to the log's own sink, in their order. A process that was killed leaves the lines of what it
   did until then; one that is cut short is no line.

Lines are data: nothing in them names code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from refold.agents.journal.record import Failure, Outcome, Plain, Step
from refold.agents.recorder.context import ExecutionBranch
from refold.agents.recorder.sinks import RunSink
from refold.agents.recorder.step_assembler import Made, MadeAttempt, MadeStep
from refold.avro.errors import InputError


class StepBegun(msgspec.Struct, tag=True):
    """See Sink.step_begun."""

    number: int
    name: str
    attempt: int
    at: int


class AttemptFailed(msgspec.Struct, tag=True):
    """See Sink.attempt_failed."""

    number: int
    made: MadeAttempt


class StepEnded(msgspec.Struct, tag=True):
    """See Sink.step_ended."""

    made: MadeStep


class Taken(msgspec.Struct, tag=True):
    """See Sink.taken."""

    step: Step
    state: Plain


class Parted(msgspec.Struct, tag=True):
    """See Sink.forked."""

    patch: Plain
    state: Plain


class RunEnded(msgspec.Struct, tag=True):
    """See Sink.ended and, where it departed, Sink.departed."""

    outcome: Outcome
    output: Plain
    failure: Failure | None
    at: int
    is_departure: bool = False


Line = StepBegun | AttemptFailed | StepEnded | Taken | Parted | RunEnded


class JournalSink(RunSink):
    """Hands each thing that a run did to `say`."""

    def __init__(self, say: Callable[[Line], None]) -> None:
        self._say = say

    def step_begun(self, number: int, name: str, attempt: int, at: int) -> None:
        """Said at once."""
        self._say(StepBegun(number, name, attempt, at))

    def call_ended(self, made: Made) -> None:
        """Its step's end says it: a fork that is killed keeps whole steps."""

    def attempt_failed(self, number: int, made: MadeAttempt) -> None:
        """Said at once."""
        self._say(AttemptFailed(number, made))

    def step_ended(self, made: MadeStep) -> None:
        """Said at once."""
        self._say(StepEnded(made))

    def taken(self, step: Step, state: Plain) -> None:
        """Said at once."""
        self._say(Taken(step, state))

    def forked(self, patch: Plain, state: Plain) -> None:
        """Said at once."""
        self._say(Parted(patch, state))

    def settle(self) -> None:
        """What was said stays, also if this process is killed."""

    def ended(self, outcome: Outcome, output: Plain, failure: Failure | None, at: int) -> str:
        """Said at once. Its hash is made where it is written."""
        self._say(RunEnded(outcome, output, failure, at))
        return ""

    def departed(self, failure: Failure, at: int) -> None:
        """Said at once."""
        self._say(RunEnded("failed", None, failure, at, is_departure=True))


def encoded(thing: object) -> bytes:
    """A line, or an answer. Which branch of the run made a call is in their order, and is left out."""
    return msgspec.json.encode(thing, enc_hook=_left_out)


def _left_out(thing: object) -> None:
    if not isinstance(thing, ExecutionBranch):
        raise NotImplementedError(f"{type(thing).__name__} cannot be said")


def record(lines: Iterable[bytes], sink: RunSink) -> bool:
    """Write what was said into a sink; whether the run ended. InputError for what is no line."""
    decoder = msgspec.json.Decoder(Line, dec_hook=lambda kind, _: kind())
    for line in lines:
        try:
            done = decoder.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InputError(f"the confined process said what cannot be read: {error}") from None
        match done:
            case StepBegun(number, name, attempt, at):
                sink.step_begun(number, name, attempt, at)
            case AttemptFailed(number, failed):
                sink.attempt_failed(number, failed)
            case StepEnded(made):
                sink.step_ended(made)
            case Taken(step, state):
                sink.taken(step, state)
            case Parted(patch, state):
                sink.forked(patch, state)
            case RunEnded(outcome, output, failure, at, is_departure):
                if is_departure and failure is not None:
                    sink.departed(failure, at)
                else:
                    sink.ended(outcome, output, failure, at)
                return True
    return False
