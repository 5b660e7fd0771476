"""The errors that all folders share. `refold.errors` has these, and every other one that refold raises on purpose.

    RefoldError
    +-- InputError (ValueError)      what was given cannot be used; the message says what to give instead
    |   +-- SchemaError              a type definition is refused, or a type is unknown
    |   +-- ValidationError          a value breaks its field's rule; carries field, rule and what was given
    |   +-- NotAnswerable            the log cannot answer this; names the nearest point it can
    |   |   +-- Expired              its content was removed; everything else in the log about it remains
    |   +-- UnknownEntity            the entity has no observation at that point
    |   +-- NotConfinable            the system cannot confine a replay; no code was run
    +-- StorageError                 the log's storage failed; nothing was acknowledged that is not there
    |   +-- Denied                   the brokers do not let this user do it; says what grants it
    |   +-- Unanswered               no broker answered in time: nothing is decided until one does
    |   +-- CorruptionError          stored bytes are not what was written
    |   |   +-- DamagedRecord        one record of a log is damaged; carries its position, and says how to set it aside
    |   |   +-- KeyUnreadable        one key of a key ring cannot be used; other keys work
    |   +-- LockedError              another process owns the log
    |   +-- OwnerGone                the owner ended during a request; a repeated request finds the next owner
    |   +-- OwnerSilent              the owner lives but does not answer
    |   +-- StoreUnavailable         an object store gave no answer: nothing is decided until it does
    |   +-- StoreRefused             an object store refuses, and waiting does not help
    +-- RedactionFailed              secrets could not be removed from what was to be written; it was not written
    +-- RegistryUnavailable          the Schema Registry gave no answer: nothing is decided until it does
    +-- UndecodableError             bytes that are not an observation; carries the reason for the verdict
        +-- UnknownWireId            its schema is not in the log as far as it was read; carries the id

Errors about effects (NotDone, EffectUnknown and others) are in agents/effects/errors.py. For each of these errors the
command line prints the message alone and exits with status 2.
"""

from __future__ import annotations

SHOWN_MAX = 120


class RefoldError(Exception):
    """Root of refold's own errors."""


class InputError(RefoldError, ValueError):
    """What was given cannot be used; the message names the place and says what to do."""


class SchemaError(InputError):
    """A type definition is refused, or a type is not known to this log."""


class ValidationError(InputError):
    """A value breaks a rule of its schema.

    Attributes:
        field: The dotted path of the value (`patch.rate_limit`).
        rule: What must hold.
        given: What came instead.
    """

    def __init__(self, field: str, rule: str, given: object) -> None:
        super().__init__(f"{_one_line(field)}: {rule}; given {_shown(given)}")
        self.field = field
        self.rule = rule
        self.given = given

    def at(self, place: str) -> ValidationError:
        """The same refusal, placed below an outer path."""
        return ValidationError(f"{place}{self.field}", self.rule, self.given)


def _shown(given: object) -> str:
    """The given value, short and on one line; a text in parentheses describes a value that is too large to show."""
    if isinstance(given, str) and given.startswith("("):
        return _one_line(given)
    try:
        shown = repr(given)
    except Exception:  # an integer of thousands of digits has no repr, and a foreign object may have none either
        return f"(a value of type {type(given).__name__} that cannot be shown)"
    return _one_line(shown) if len(shown) <= SHOWN_MAX else f"{_one_line(shown[:110])}... ({len(shown)} characters)"


def _one_line(text: str) -> str:
    """Make a path printable and bounded: it may contain a map's key, which may be any text."""
    if len(text) > SHOWN_MAX * 2:
        text = f"{text[:SHOWN_MAX]}...{text[-SHOWN_MAX // 2 :]}"
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class NotAnswerable(InputError):
    """The log cannot answer at the point asked for; the message names the nearest one it can."""


class Expired(NotAnswerable):
    """The content was removed on purpose: its key was destroyed or its blob deleted. It cannot be restored."""


class UnknownEntity(InputError):
    """The entity has no observation at the point asked for."""


class NotConfinable(InputError):
    """The operating system's kernel or the container cannot confine a replay; no code was run."""


class StorageError(RefoldError):
    """The storage below the log failed; what was not acknowledged may be written again."""


class Denied(StorageError):
    """An access list of the brokers lacks something; the message names it, and the command that grants it."""


class Unanswered(StorageError):
    """No broker answered in time. This says nothing about the stored data: wait, and repeat."""


class CorruptionError(StorageError):
    """Stored bytes differ from what was written."""


class DamagedRecord(CorruptionError):
    """A required record of the log cannot be read; the message names its position and how to continue without it."""

    def __init__(self, message: str, topic: str, partition: int, offset: int) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset


class KeyUnreadable(CorruptionError):
    """One key of a key ring cannot be used, so what it sealed cannot be opened; other keys work. The message names its
    place.
    """


class LockedError(StorageError):
    """Another process owns the log."""


class OwnerGone(StorageError):
    """The owning process ended during a request."""


class OwnerSilent(StorageError):
    """The owning process holds the log but does not answer in time."""


class StoreUnavailable(StorageError):
    """An object store gave no answer, or no certain one. This says nothing about its content: wait, and repeat.

    Attributes:
        retry_after_s: How long to wait first, in seconds.
    """

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class StoreRefused(StorageError):
    """An object store refuses, and waiting does not help; the message says what to do."""


class RedactionFailed(RefoldError):
    """Secrets could not be removed from what was to be written. It was not written, and the message shows none of
    it.
    """


class RegistryUnavailable(RefoldError):
    """The Schema Registry gave no answer. This says nothing about any schema: wait, and repeat."""


class UndecodableError(RefoldError):
    """Bytes that are not an observation of this log; the message is the verdict's reason."""


class UnknownWireId(UndecodableError):
    """A frame with a schema id that is not in the log as far as it was read.

    It gives no verdict until `.schemas` was read to its end and, if the log uses a Schema Registry, the registry was
    asked.
    """

    def __init__(self, wire_id: int) -> None:
        super().__init__(f"no schema with id {wire_id} in this log")
        self.wire_id = wire_id
