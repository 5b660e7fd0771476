"""Which of two sequences' items belong together, when some were put in, left out or changed.

Items with equal keys belong together first (longest runs of them, as in difflib). In what lies between, those with
equal weaker keys; and what is left is paired in its order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple


class Pair(NamedTuple):
    """Indexes that belong together; None where the other side has nothing. same: by the stronger key."""

    a: int | None
    b: int | None
    same: bool = False


def aligned(
    a: Sequence[Hashable], b: Sequence[Hashable], weak_a: Sequence[Hashable], weak_b: Sequence[Hashable]
) -> Iterator[Pair]:
    """Every item of both, in order."""
    for tag, a_from, a_to, b_from, b_to in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if tag == "equal":
            yield from (Pair(a_from + at, b_from + at, True) for at in range(a_to - a_from))
            continue
        inner = SequenceMatcher(None, weak_a[a_from:a_to], weak_b[b_from:b_to], autojunk=False)
        for _, x_from, x_to, y_from, y_to in inner.get_opcodes():
            for at in range(max(x_to - x_from, y_to - y_from)):
                one, other = a_from + x_from + at, b_from + y_from + at
                yield Pair(one if one < a_from + x_to else None, other if other < b_from + y_to else None)
