"""What a receiver of OTLP counts, for its metrics. Any thread may call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from threading import Lock
from typing import Literal, NamedTuple, TypeAlias

Refused: TypeAlias = Literal["malformed", "foreign", "unsupported", "slow", "large", "busy", "log", "ending"]
REFUSED: Mapping[Refused, str] = {
    "malformed": "the body is no request, or not as encoded as it says",
    "foreign": "a browser's page, or a name that is not this machine's, sent it",
    "unsupported": "another path, method, content type or encoding",
    "slow": "the body took too long",
    "large": "the body is larger than the bound",
    "busy": "too many requests wait for the log: the sender tries again",
    "log": "the log is not available: the sender tries again",
    "ending": "the receiver is ending: the sender tries again",
}
"""Why requests are refused."""
SIGNALS = ("spans", "log_records")


class ReceivedCounts(NamedTuple):
    """The counts at one moment.

    Attributes:
        recorded, rejected: The numbers of recorded and of rejected items, by signal.
        refused: The number of refused requests, by the reason in REFUSED.
        commit_s: How long the commits took in total, in seconds.
    """

    recorded: Mapping[str, int]
    rejected: Mapping[str, int]
    refused: Mapping[Refused, int]
    taken: int
    commits: int
    commit_s: float
    queued_bytes: int
    is_log_available: bool


class ReceiverCounts:
    """Counts what is received."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._recorded: Counter[str] = Counter(dict.fromkeys(SIGNALS, 0))
        self._rejected: Counter[str] = Counter(dict.fromkeys(SIGNALS, 0))
        self._refused: Counter[Refused] = Counter(dict.fromkeys(REFUSED, 0))
        self._taken, self._commits, self._commit_s = 0, 0, 0.0
        self._queued_bytes = 0
        self._is_log_available = True

    def refused(self, reason: Refused) -> None:
        """Count a request that is refused."""
        with self._lock:
            self._refused[reason] += 1

    def queued(self, size_bytes: int) -> None:
        """Set how many bytes of requests wait for the log."""
        with self._lock:
            self._queued_bytes = size_bytes

    def committed(self, took_s: float) -> None:
        """Count a commit of the log, and how long its requests' recording took."""
        with self._lock:
            self._commits += 1
            self._commit_s += took_s
            self._is_log_available = True

    def failed(self) -> None:
        """Note that the log could not be written."""
        with self._lock:
            self._is_log_available = False

    def taken(self, signal: str, recorded: int, rejected: int) -> None:
        """Count a request whose items are durable, but for the rejected ones.

        Args:
            signal: What its items are, one of SIGNALS.
            recorded: How many items were recorded.
            rejected: How many items were rejected.
        """
        with self._lock:
            self._taken += 1
            self._recorded[signal] += recorded
            self._rejected[signal] += rejected

    def now(self) -> ReceivedCounts:
        """Return the counts."""
        with self._lock:
            return ReceivedCounts(
                {**self._recorded}, {**self._rejected}, {**self._refused}, self._taken, self._commits,
                self._commit_s, self._queued_bytes, self._is_log_available,
            )  # fmt: skip
