"""Whether two calls ask the same: by their requests, without what either says is volatile (journal/volatile.py)."""

from __future__ import annotations

from refold.agents.journal.delta import is_same
from refold.agents.journal.record import Plain, RecordedRequest
from refold.agents.journal.volatile import without


def compared(a: RecordedRequest, b: RecordedRequest) -> tuple[Plain, Plain]:
    """Return the values by which two calls of one kind and name are compared: their keys if both have one, else their
    requests without the parts that either ignores."""
    if a.found_by is not None and b.found_by is not None:
        return a.found_by, b.found_by
    ignored = (*a.ignored, *b.ignored)
    return without(a.request, ignored), without(b.request, ignored)


def asks_same(a: RecordedRequest, b: RecordedRequest) -> bool:
    """Whether the answer of one of them answers the other."""
    if a.kind != b.kind or a.name != b.name:
        return False
    one, other = compared(a, b)
    return one == other and is_same(one, other)
