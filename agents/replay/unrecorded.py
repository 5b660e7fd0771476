"""The error of a replay for a request that the recording does not hold.

It names the request, the nearest recorded request, how the two differ, place by place, and where the same request is
recorded, if anywhere. The nearest request has the same kind and name, is in the same step, is not served yet, and has
the most leaves in common; among equals, the most similar texts.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher

from refold.agents.journal.difference import Difference, differences, shown
from refold.agents.journal.matching import compared
from refold.agents.journal.record import Plain, RecordedRequest
from refold.agents.recorder.answers import CallSite, Departure
from refold.agents.replay.call_cache import RecordedCallPosition, RecordedCalls
from refold.agents.replay.watch import Escape

LINES_MAX = 8
_LIKE_MAX = 16
_TEXT_MAX = 2000


class Unrecorded(Departure):
    """A request that the recording does not hold.

    Attributes:
        site: The step and the attempt.
        asked: The request.
        nearest: The nearest recorded call; None if no call of this kind was recorded.
        differences: The differences, with the new request on the left and the recorded one on the right.
        elsewhere: Where this very request is recorded.
        what: All of that, in lines for people.
    """

    def __init__(
        self,
        run: str,
        site: CallSite,
        request: RecordedRequest,
        nearest: RecordedCallPosition | None,
        elsewhere: tuple[RecordedCallPosition, ...],
    ) -> None:
        self.run = run
        self.site = site
        self.asked = request
        self.nearest = nearest
        self.elsewhere = elsewhere
        self.differences: list[Difference] = []
        if nearest is not None:
            self.differences = differences(*_trees(request, nearest.call.asked))
        self.what = "\n".join(self._lines())
        super().__init__(
            f"{self.what}\nA replay answers from the recording alone. Where the code is meant to do otherwise, fork "
            f"the run before this step (--at {self.site.step - 1}) and let what follows be live"
        )

    def _lines(self) -> Iterator[str]:
        yield f"{where(self.site)} asked for what the recording of run {self.run} does not hold"
        yield f"  asked     {request_line(self.asked)}"
        for at in self.elsewhere[:LINES_MAX]:
            yield f"  recorded  the same in {where(at.site)}{', served already' if at.site == self.site else ''}"
        if self.nearest is not None and not self.elsewhere:
            yield f"  nearest   {request_line(self.nearest.call.asked)}, in {where(self.nearest.site)}"
            for one in (self.asked, self.nearest.call.asked):
                if not one.is_whole:
                    yield f"  compared  {one.matching}"
            for each in self.differences[:LINES_MAX]:
                yield f"  differs   {each.line('asked', 'recorded')}"
            if len(self.differences) > LINES_MAX:
                yield f"  differs   in {len(self.differences) - LINES_MAX} more places"


class OutsideOfRun(Departure):
    """A tool was called outside of every run while a replay is open; it was not executed."""

    def __init__(self, run: str, escape: Escape) -> None:
        self.escape = escape
        super().__init__(
            f"during the replay of run {run} something tried to {escape.what}, at {escape.source_line}: it was "
            "not executed. Start the thread, task or work that calls it inside the run, so that the recording answers"
        )


def unrecorded(recorded: RecordedCalls, site: CallSite, request: RecordedRequest) -> Unrecorded:
    """Return the error for a request that `recorded` did not answer."""
    return Unrecorded(
        recorded.run, site, request, _nearest(list(recorded.all()), site, request), recorded.same(request)
    )


def request_line(request: RecordedRequest) -> str:
    """Return a request on one line: `tool search(q="x")`."""
    content = request.request
    if isinstance(content, dict) and content.keys() <= {"args", "kwargs"}:
        arguments = [shown(each) for each in content.get("args", [])]
        arguments += [f"{key}={shown(value)}" for key, value in content.get("kwargs", {}).items()]
        return f"{request.kind} {request.name}({', '.join(arguments)})"
    return " ".join(part for part in (request.kind, request.name, "" if content is None else shown(content)) if part)


def where(site: CallSite) -> str:
    """Return a call site for people: `step 3 (plan)`, with the attempt if it is not the first."""
    name = f" ({site.name})" if site.name else ""
    attempt = f", attempt {site.attempt}" if site.attempt > 1 else ""
    return f"step {site.step}{name}{attempt}"


def _nearest(
    calls: list[tuple[RecordedCallPosition, bool]], site: CallSite, request: RecordedRequest
) -> RecordedCallPosition | None:
    alike = [each for each in calls if each[0].call.asked.kind == request.kind]
    alike = [each for each in alike if each[0].call.asked.name == request.name] or alike
    if not alike:
        return None
    leaves = dict(_leaves(request.request, ""))

    def rank(each: tuple[RecordedCallPosition, bool]) -> tuple[float, ...]:
        at, served = each
        other = dict(_leaves(at.call.asked.request, ""))
        common = sum(1 for path, value in leaves.items() if other.get(path, _NONE) == value)
        name = SequenceMatcher(None, at.call.asked.name, request.name).ratio()
        share = common / max(1, len(leaves), len(other))
        return name, at.site.step == site.step, not served, share, -abs(at.site.step - site.step)

    best = sorted(alike, key=rank, reverse=True)[:_LIKE_MAX]
    top = rank(best[0])
    ties = [each for each in best if rank(each)[:4] == top[:4]]
    return max(ties, key=lambda each: _likeness(leaves, each[0]))[0]


def _likeness(leaves: dict[str, Plain], at: RecordedCallPosition) -> float:
    """Return how similar the texts at the same paths are, in total."""
    other = dict(_leaves(at.call.asked.request, ""))
    texts = [(value, other.get(path)) for path, value in leaves.items()]
    return sum(
        SequenceMatcher(None, str(a)[:_TEXT_MAX], str(b)[:_TEXT_MAX]).quick_ratio() for a, b in texts[:_LIKE_MAX]
    )


_NONE = object()


def _leaves(tree: Plain, path: str) -> Iterator[tuple[str, Plain]]:
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from _leaves(value, f"{path}.{key}")
    elif isinstance(tree, list) and tree:
        for index, value in enumerate(tree):
            yield from _leaves(value, f"{path}[{index}]")
    else:
        yield path, tree


def _trees(request: RecordedRequest, recorded: RecordedRequest) -> tuple[Plain, Plain]:
    """Return the compared parts of two requests: names with requests, without the wrapping of a call without
    arguments.
    """
    one, other = (part if isinstance(part, dict) else {"request": part} for part in compared(request, recorded))
    return (
        {"kind": request.kind, "name": request.name, **one}, {"kind": recorded.kind, "name": recorded.name, **other}
    )  # fmt: skip
