"""The calls of a recording, found by their request: a content-addressed cache, keyed by the request.

Parts of a request that the code or the recording marks as volatile do not count (journal/volatile.py).

Each recorded call is served once. Equal requests of a thread or task are answered with the answers that the same one
got, identified by where it was started, in the recorded order; so it does not matter which of several is faster. If the
code was changed, that is the thread or task that was started in the same place under another name, or else any one with
an answer left. The same holds for recordings from before branches were recorded.

An attempt that was cut short has no calls that were still unanswered. Then no thread gets the answer of another, except
for writes: each of them was sent, and must not be sent again.

The scope says which answers a request may get:

    step    only those of the same attempt of the same step: how a replay is exact
    run     first those of the same step, then those of every other, in order: for a changed agent that does the same
            things elsewhere, and may read the clock more often than was recorded
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias
from uuid import UUID

from refold.agents.journal.matching import asks_same
from refold.agents.journal.record import OF_THE_CODE, Call, Kind, RecordedRequest, Recording, Step
from refold.agents.recorder.answers import CallSite

Scope: TypeAlias = Literal["step", "run"]

_NAMES = re.compile(r"[^/#]+(?=#)")

OF_THE_PROCESS: frozenset[Kind] = frozenset({"now", "random", "uuid"})
"""Kinds that a process can make itself: to use more of them than recorded has no cost and no effect outside."""


class RecordedCallPosition(NamedTuple):
    """A recorded call with its step and attempt.

    Attributes:
        position: Its position in its attempt, counted from 1.
    """

    site: CallSite
    position: int
    call: Call


@dataclass(slots=True)
class _Attempt:
    """The calls of one attempt.

    Attributes:
        first: The index before which all calls are served.
    """

    calls: tuple[RecordedCallPosition, ...]
    served: list[bool]
    first: int = 0

    @property
    def has_branches(self) -> bool:
        """Whether it is recorded which thread or task made each call."""
        return any(at.call.branch for at in self.calls)

    def serve(self, index: int) -> Call:
        self.served[index] = True
        while self.first < len(self.calls) and self.served[self.first]:
            self.first += 1
        return self.calls[index].call


class RecordedCalls:
    """The calls of a recording, each to be served once."""

    def __init__(
        self, recording: Recording, scope: Scope = "step", *, after: int = 0, is_cut_short: bool = False
    ) -> None:
        """Index the calls of a recording.

        Args:
            recording: The recording.
            scope: Which answers a request may get; see the module.
            after: Use only the calls of the steps after this one.
            is_cut_short: Whether the recorded attempts were cut short.
        """
        self.run = recording.run
        self.scope = scope
        self._is_cut_short = is_cut_short
        self._lock = threading.Lock()  # several threads may call in a step
        self._attempts: dict[tuple[int, int], _Attempt] = {}
        for step in recording.steps:
            if step.number > after:
                self._add(step)

    def take(self, site: CallSite, request: RecordedRequest) -> Call | None:
        """Return the recorded call that answers, and mark it as served; None if there is none."""
        with self._lock:
            return self._take(site, request)

    def _take(self, site: CallSite, request: RecordedRequest) -> Call | None:
        own = self._attempts.get((site.step, site.attempt))
        # Code that did not change requests in the recorded order; then no hash must be computed.
        if own is not None and own.first < len(own.calls):
            first = own.calls[own.first].call
            if first.branch == site.branch and asks_same(first.asked, request):
                return own.serve(own.first)
        left = [(attempt, index) for attempt, index in self._alike(request) if not attempt.served[index]]
        if self.scope == "step" or any(attempt is own for attempt, _ in left):
            left = [(attempt, index) for attempt, index in left if attempt is own]
        if not left:
            return None
        ranks = [_rank(attempt.calls[index].call.branch, site.branch) for attempt, index in left]
        if self._is_cut_short and request.effect != "write" and min(ranks) and own is not None and own.has_branches:
            return None
        attempt, index = left[ranks.index(min(ranks))]
        return attempt.serve(index)

    def keys(self, site: CallSite) -> frozenset[str]:
        """Return the keys of the effects in an attempt."""
        own = self._attempts.get((site.step, site.attempt))
        return frozenset(at.call.key for at in own.calls if at.call.key) if own is not None else frozenset()

    def all(self) -> Iterator[tuple[RecordedCallPosition, bool]]:
        """Yield every call, in order, and whether it was served."""
        for attempt in self._attempts.values():
            yield from zip(attempt.calls, attempt.served, strict=True)

    def same(self, request: RecordedRequest) -> tuple[RecordedCallPosition, ...]:
        """Return the calls with this request, served or not."""
        return tuple(attempt.calls[index] for attempt, index in self._alike(request))

    def made_up(self, request: RecordedRequest, count: int) -> Call:
        """Return a substitute for a time, a number or an id that is not recorded; it is the same in every replay.

        Args:
            request: The request.
            count: How many substitutes were used before it. Times continue from the last recorded one.
        """
        if request.kind == "now":
            times = [at.call.answer for at, _ in self.all() if at.call.asked.kind == "now"]
            return Call(asked=request, answer=max([0, *times]) + count + 1, source="recorded")
        digest = hashlib.sha256(f"{self.run}/{request.kind}/{count}".encode()).digest()
        is_name = request.kind == "uuid"
        answer = str(UUID(bytes=digest[:16], version=4)) if is_name else int.from_bytes(digest[:6]) / 2**48
        return Call(asked=request, answer=answer, source="recorded")

    def unused(self) -> tuple[RecordedCallPosition, ...]:
        """Return the calls that were never requested, without kinds that the code computes itself."""
        return tuple(at for at, served in self.all() if not served and at.call.asked.kind not in OF_THE_CODE)

    def _alike(self, request: RecordedRequest) -> list[tuple[_Attempt, int]]:
        """Return the calls that make the same request, in order."""
        if request.is_whole and not self._has_volatile:
            return self._by_hash.get(request.hash, [])
        return [
            (attempt, index) for attempt in self._attempts.values() for index, at in enumerate(attempt.calls)
            if asks_same(at.call.asked, request)
        ]  # fmt: skip

    @cached_property
    def _has_volatile(self) -> bool:
        return any(not at.call.asked.is_whole for attempt in self._attempts.values() for at in attempt.calls)

    @cached_property
    def _by_hash(self) -> dict[str, list[tuple[_Attempt, int]]]:
        found: dict[str, list[tuple[_Attempt, int]]] = {}
        for attempt in self._attempts.values():
            for index, at in enumerate(attempt.calls):
                found.setdefault(at.call.asked.hash, []).append((attempt, index))
        return found

    def _add(self, step: Step) -> None:
        for attempt in step.attempts:
            site = CallSite(step.number, step.name, attempt.number)
            calls = tuple(RecordedCallPosition(site, position, call) for position, call in enumerate(attempt.calls, 1))
            self._attempts[step.number, attempt.number] = _Attempt(calls, [False] * len(calls))


def _rank(recorded: str, asking: str) -> int:
    """Rank how well a recorded call's branch fits the requesting one: 0 the same, 1 under another name, 2 another."""
    if recorded == asking:
        return 0
    return 1 if _NAMES.sub("", recorded) == _NAMES.sub("", asking) else 2
