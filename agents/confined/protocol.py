"""The question to a confined replay, and its answer (agents/confined/replay.py, child.py)."""

from __future__ import annotations

import msgspec

from refold.agents.journal.record import Plain, RecordedRequest, Recording, Step
from refold.agents.recorder.answers import CallSite, Departure
from refold.agents.replay.call_cache import RecordedCallPosition
from refold.agents.replay.forked import NotAllowed
from refold.agents.replay.unrecorded import Unrecorded
from refold.agents.replay.watch import Escape, NetworkDenied
from refold.avro import errors


class ErrorReply(msgspec.Struct, frozen=True):
    """An error of refold, by its name."""

    name: str
    message: str

    @classmethod
    def of(cls, error: BaseException) -> ErrorReply:
        """Describe an error. Any error that is not refold's becomes an InputError."""
        if isinstance(error, errors.RefoldError) and hasattr(errors, type(error).__name__):
            return cls(type(error).__name__, str(error))
        return cls("InputError", f"{type(error).__name__}: {error}")

    def error(self) -> errors.RefoldError:
        """Return the error that was described."""
        kind = getattr(errors, self.name, None)
        if isinstance(kind, type) and issubclass(kind, errors.RefoldError):
            return kind(self.message)
        return errors.RefoldError(self.message)


class ReadReply(msgspec.Struct, frozen=True):
    """The values of a recorded read, looked up before the process was confined, or the error of the lookup."""

    entity: str
    answer: Plain
    fields: dict[str, Plain] | None = None
    error: ErrorReply | None = None


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A replay to be done. With `parent`, a fork of that run; the recording is then the fork's head.

    Attributes:
        entry: The agent, imported from the folder `base`.
        path: The entries of sys.path.
        redactor: The name of the function that redacts, as `entry`; empty without a redactor, or with `redact`.
        redact: The pickled redactor; empty without one, or with `redactor`.
        key: The key of the redactor's tokens.
        golden: The answers of a golden trace that is not exact, by name.
        folder: The only folder in which files may be written; set by the function that starts the process.
    """

    recording: Recording
    entry: str
    base: str
    path: list[str]
    folder: str = ""
    parent: Recording | None = None
    reads: list[ReadReply] = []
    redactor: str = ""
    redact: bytes = b""
    key: bytes | None = None
    golden: dict[str, Plain] | None = None


class DepartureReply(msgspec.Struct, frozen=True, kw_only=True):
    """How the code departed from the recording (a Departure)."""

    message: str
    denied: Escape | None = None
    is_not_allowed: bool = False
    site: CallSite | None = None
    asked: RecordedRequest | None = None
    nearest: RecordedCallPosition | None = None
    elsewhere: tuple[RecordedCallPosition, ...] = ()
    so_far: Recording | None = None
    left_in: Step | None = None

    @classmethod
    def of(cls, departure: Departure) -> DepartureReply:
        """Describe a departure."""
        more: dict[str, object] = {}
        if isinstance(departure, NetworkDenied):
            more = {"denied": Escape(departure.what, departure.source_line)}
        elif isinstance(departure, Unrecorded):
            more = {
                "site": departure.site, "asked": departure.asked, "nearest": departure.nearest,
                "elsewhere": departure.elsewhere,
            }  # fmt: skip
        elif isinstance(departure, NotAllowed):
            more = {"site": departure.site, "asked": departure.asked, "is_not_allowed": True}
        fields = {"message": str(departure), "so_far": departure.so_far, "left_in": departure.left_in, **more}
        return cls(**fields)  # type: ignore[arg-type]

    def departure(self, run: str) -> Departure:
        """Return the departure that was described."""
        if self.denied is not None:
            found: Departure = NetworkDenied(self.denied.what, self.denied.source_line)
        elif self.is_not_allowed and self.site is not None and self.asked is not None:
            found = NotAllowed(self.site, self.asked, is_confined=True)
        elif self.site is not None and self.asked is not None:
            found = Unrecorded(run, self.site, self.asked, self.nearest, self.elsewhere)
        else:
            found = Departure(self.message)
        found.so_far, found.left_in = self.so_far, self.left_in
        return found


class ChildReply(msgspec.Struct, frozen=True, kw_only=True):
    """The result: exactly one of refused, error, left and now is set, or none for a fork.

    Attributes:
        refused: Why the process could not be confined; then no code was run.
        unheld: Why its files were not confined; empty if they were.
    """

    refused: str = ""
    error: ErrorReply | None = None
    left: DepartureReply | None = None
    now: Recording | None = None
    unused: tuple[RecordedCallPosition, ...] = ()
    escapes: tuple[Escape, ...] = ()
    unheld: str = ""
