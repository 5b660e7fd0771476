"""Decide whether two calls make the same request. Volatile parts (journal/volatile.py) are not compared.

Reports list the calls that were not compared by their whole request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from refold.agents.journal.delta import is_same
from refold.agents.journal.record import Plain, RecordedRequest, Recording
from refold.agents.journal.volatile import without


def compared(a: RecordedRequest, b: RecordedRequest) -> tuple[Plain, Plain]:
    """Return the values by which two calls of one kind and name are compared.

    They are the calls' keys if both have one, else the requests without the parts that either ignores.
    """
    if a.found_by is not None and b.found_by is not None:
        return a.found_by, b.found_by
    ignored = (*a.ignored, *b.ignored)
    return without(a.request, ignored), without(b.request, ignored)


def asks_same(a: RecordedRequest, b: RecordedRequest) -> bool:
    """Return whether the answer of one call answers the other."""
    if a.kind != b.kind or a.name != b.name:
        return False
    one, other = compared(a, b)
    return one == other and is_same(one, other)


def matchings(requests: Iterable[RecordedRequest]) -> list[str]:
    """Describe the calls that are not compared by their whole request, such as `tool find: matched without request_id`.

    Each description occurs once.
    """
    return list(dict.fromkeys(f"{each.kind} {each.name}: {each.matching}" for each in requests if not each.is_whole))


def compared_requests(*runs: Recording) -> Iterator[RecordedRequest]:
    """Yield the requests of the last attempt of each step, which is the one that counts."""
    return (call.asked for run in runs for step in run.steps for call in step.calls)


def compared_requests_in(tree: Plain) -> Iterator[RecordedRequest]:
    """Yield the requests in a step's stored journal that are not compared by their whole request."""
    if isinstance(tree, list):
        for each in tree:
            yield from compared_requests_in(each)
    if isinstance(tree, dict):
        if "kind" in tree and ("ignored" in tree or "found_by" in tree):
            try:
                yield msgspec.convert(tree, RecordedRequest)
            except msgspec.ValidationError:  # an argument of the agent that only looks like a request
                pass
            else:
                return
        for each in tree.values():
            yield from compared_requests_in(each)
