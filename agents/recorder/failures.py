"""Exceptions as they are recorded, and raised again.

An exception is raised again as one of its class, with its text, its attributes and its causes
(recorder/exception_details.py). If its class is not imported, or no such exception can be created, it is replaced by a
RecordedFailure with its name: that has the attributes, a note says why, and it is not an instance of the class.

A call that was cancelled, or was still in progress when its step ended, had no answer. A replay waits as long for it as
the recorded run did, and a moment more, so that what happened first in the recorded run happens first again.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Mapping
from typing import Any

from refold.agents.entry import class_name, class_named
from refold.agents.journal.record import Failure, Outcome, Plain
from refold.agents.recorder.exception_details import ExceptionBuilder, details_of, exception_message, noted, text_of
from refold.avro.errors import InputError, RefoldError

GRACE_S = 0.5


class RecordedFailure(RefoldError):
    """The failure of a recorded call, if the exception's own class is not available. `failure` holds all of it."""

    failure: Failure


class Unfinished(InputError):
    """A call was still in progress when its step ended: its result is not recorded."""


def failure_of(error: BaseException, at: int, *, tool: str = "", given: Plain = None) -> Failure:
    """Return the record of an exception.

    Args:
        error: The exception.
        at: When it was raised, microseconds.
        tool: The tool that raised it, if one did.
        given: The tool's arguments.
    """
    was = error.failure if isinstance(error, RecordedFailure) else None
    return Failure(
        exception=class_name(type(error)) if was is None else was.exception,
        message=exception_message(error),
        traceback=text_of("".join(traceback.format_exception(error, chain=True))),
        at=at,
        tool=tool,
        input=given,
        retryable=None,
        details=details_of(error) if was is None else was.details,
    )


def raised(failure: Failure) -> BaseException:
    """Return the exception to raise again: of its recorded class if that is imported here, or a replacement."""
    return _recreate(failure.exception, failure.message, failure.details, failure)


def _recreate(name: str, message: str, details: Plain, failure: Failure | None = None) -> BaseException:
    known: Mapping[str, Plain] = details if isinstance(details, dict) else {}
    making = ExceptionBuilder(_recreate)
    found, why = _class_of(name), "its class is not imported here"
    if found is not None:
        why = "it could not be made again"
        try:
            for error in making.made(found, message, known):
                if exception_message(error) == message and type(error).__qualname__ == found.__qualname__:
                    return error
        except Exception as problem:  # constructors of exceptions may raise anything
            why += f" ({type(problem).__name__}: {problem})"
    module, _, own = name.rpartition(".")
    named: Any = type(own or "RecordedFailure", (RecordedFailure,), {"__module__": module, "__qualname__": own})
    stand_in: RecordedFailure = named(message)
    with contextlib.suppress(Exception):
        vars(stand_in).update(making.fields(known)[0])
    stand_in.failure = failure or Failure(exception=name, message=message, details=details)
    noted(stand_in, f"this stands in for {name}: {why}")
    return stand_in


def waited_s(failure: Failure | None, duration_ms: float) -> float:
    """Return how long to wait before an awaited call fails again, in seconds; 0 for nearly all failures."""
    is_open = failure is not None and _class_of(failure.exception) in (asyncio.CancelledError, Unfinished)
    return duration_ms / 1000 + GRACE_S if is_open else 0


def _class_of(name: str) -> type[BaseException] | None:
    found = class_named(name)
    return found if found is not None and issubclass(found, BaseException) else None


def outcome_of(error: BaseException | None) -> Outcome:
    """Return the outcome of code that ended with this error."""
    if error is None:
        return "succeeded"
    return "failed" if isinstance(error, Exception) else "cancelled"
