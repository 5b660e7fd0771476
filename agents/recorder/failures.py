"""Exceptions as they stand recorded, and raised again.

An exception is raised again as one of its class, with its text; what else it held is not recorded. A call that was
cancelled, or was still under way when its step ended, had no answer yet: whoever waits for it again waits as long as
then, and a moment more, so that what came first then comes first again.
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from typing import Any

from refold.agents.journal.record import Failure, Plain
from refold.avro.errors import InputError, RefoldError

GRACE_S = 0.5


class RecordedFailure(RefoldError):
    """What a recorded call failed with, where the exception's own class is not at hand. `failure` has all of it."""

    failure: Failure


class Unfinished(InputError):
    """A call was still under way when its step ended: what came of it is not recorded."""


def failure_of(error: BaseException, at: int, *, tool: str = "", given: Plain = None) -> Failure:
    """What is recorded of an exception; at: microseconds."""
    kind = type(error)
    was = error.failure.exception if isinstance(error, RecordedFailure) else f"{kind.__module__}.{kind.__qualname__}"
    return Failure(
        exception=was,
        message=_said(error),
        traceback=_text("".join(traceback.format_exception(error, chain=True))),
        at=at,
        tool=tool,
        input=given,
        retryable=None,
    )


def raised(failure: Failure) -> BaseException:
    """The exception to raise again: of the class it was of, where that is imported here, with the text it had."""
    found = _class_of(failure.exception)
    if found is not None:
        for make in (_made, _unmade, _retold):
            try:
                error: BaseException = make(found, failure.message)
            except Exception:  # it is made otherwise
                continue
            if _said(error) == failure.message and type(error).__qualname__ == found.__qualname__:
                return error
    module, _, name = failure.exception.rpartition(".")
    named: Any = type(name or "RecordedFailure", (RecordedFailure,), {"__module__": module, "__qualname__": name})
    unknown: RecordedFailure = named(failure.message)
    unknown.failure = failure
    return unknown


def waited_s(failure: Failure, duration_ms: float) -> float:
    """How long to wait before an awaited call fails again, in seconds; 0 for nearly all."""
    is_open = _class_of(failure.exception) in (asyncio.CancelledError, Unfinished)
    return duration_ms / 1000 + GRACE_S if is_open else 0


def _class_of(name: str) -> type[BaseException] | None:
    """The exception's class by its qualified name, which may have points in it.

    Looked up in the dictionaries of modules and classes: getattr would run a module's `__getattr__`, which may import
    what a recording names.
    """
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(parts[:end]))
        if found is not None:
            for part in parts[end:]:
                found = getattr(found, "__dict__", {}).get(part)
            return found if isinstance(found, type) and issubclass(found, BaseException) else None
    return None


def _made(kind: type[BaseException], message: str) -> BaseException:
    return kind(message) if message else kind()


def _unmade(kind: type[BaseException], message: str) -> BaseException:
    """Where it takes other arguments."""
    error = kind.__new__(kind)
    error.args = (message,)
    return error


def _retold(kind: type[BaseException], message: str) -> BaseException:
    """Where it says its arguments in other words, as KeyError does."""
    told: Any = type(kind.__name__, (kind,), {"__str__": lambda error: message})
    told.__module__, told.__qualname__ = kind.__module__, kind.__qualname__
    error = told.__new__(told)
    error.args = (message,)
    assert isinstance(error, BaseException)
    return error


def _said(error: BaseException) -> str:
    try:
        return _text(str(error))
    except Exception as problem:
        return f"(no text: its __str__ raised {type(problem).__qualname__})"


def _text(said: str) -> str:
    """What a log can hold of it: names of files may have half a character in them."""
    return said.encode("utf-8", "backslashreplace").decode()
