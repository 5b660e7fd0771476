"""Digests of spans equal hashlib's, whether the kernel, another thread or the caller computes them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from hashlib import sha256
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.avro.kernel import find_kernel
from refold.streams.snapshots.hashing import AHEAD, RunningHashes
from refold_tests.both_folds import switched


class Span(NamedTuple):
    """A span's records, those of a span that is dropped before it, and whether its digest is asked for at once."""

    records: list[bytes]
    dropped: list[bytes]
    at_once: bool


@st.composite
def pieces_and_spans(draw: st.DrawFn) -> tuple[int, list[Span]]:
    """Draw a size of pieces, and spans whose records are shorter, longer and exactly as long."""
    piece_bytes = draw(st.integers(1, 100))
    edges = st.sampled_from([0, 1, piece_bytes - 1, piece_bytes, piece_bytes + 1, 3 * piece_bytes])
    sizes = edges | st.integers(0, piece_bytes // 3)
    records = st.lists(
        st.builds(lambda number, size: Random(number).randbytes(size), st.integers(0, 99), sizes), max_size=6
    )
    spans = st.builds(Span, records, st.just([]) | records, st.sampled_from([False, False, False, True]))
    return piece_bytes, draw(st.lists(spans, max_size=20))


def digest_of(span: Span) -> bytes:
    return sha256(b"".join(span.records)).digest()


def ended(hashes: RunningHashes, span: Span) -> Callable[[], bytes]:
    for record in span.dropped:
        hashes.update(record)
    hashes.begin()
    for record in span.records:
        hashes.update(record)
    return hashes.end()


@pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "python"])
@given(drawn=pieces_and_spans(), chosen=st.randoms(), works=st.sets(st.integers(0, 19)))
def test_each_span_has_its_digest(
    drawn: tuple[int, list[Span]], chosen: Random, works: set[int], kernel: bool
) -> None:  # fmt: skip
    """Asked for when it ended, or after all in any order; also with other work in between."""
    piece_bytes, spans = drawn
    with switched(on=kernel), RunningHashes(piece_bytes) as hashes:
        asked: list[tuple[Callable[[], object], object]] = []
        for number, span in enumerate(spans):
            digest = ended(hashes, span)
            if span.at_once:
                assert digest() == digest_of(span)
            asked.append((digest, digest_of(span)))
            if number in works:
                asked.append((hashes.later(lambda number=number: number), number))  # type: ignore[misc]
        chosen.shuffle(asked)
        for question, expected in [*asked, *asked[:3]]:
            assert question() == expected


def test_short_spans_are_hashed_by_the_kernel_in_one_call() -> None:
    """In one call for those that are too short alone, in the thread."""
    kernel = find_kernel().kernel
    assert kernel is not None
    calls: list[tuple[int, str]] = []

    def noted(spans: list[list[bytes]]) -> list[bytes]:
        calls.append((len(spans), threading.current_thread().name))
        return kernel.span_digests(spans)

    with RunningHashes(100) as hashes:
        hashes._span_digests = noted  # type: ignore[assignment]
        spans = [Span([bytes([number]) * 30], [], False) for number in range(10)]
        digests = [ended(hashes, span) for span in spans]
        assert [digest() for digest in digests] == list(map(digest_of, spans))
    assert [count for count, _ in calls] == [4, 4, 2]
    assert all(name.startswith("refold-hash") for _, name in calls)


@given(st.lists(st.lists(st.binary(max_size=200), max_size=5), max_size=9))
def test_kernel_hashes_spans_of_any_records(spans: list[list[bytes]]) -> None:
    kernel = find_kernel().kernel
    assert kernel is not None
    assert kernel.span_digests(spans) == [sha256(b"".join(records)).digest() for records in spans]


def failing() -> bytes:
    raise LookupError("the work failed")


@pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "python"])
def test_error_of_other_work_is_raised_where_its_result_is_asked_for(kernel: bool) -> None:
    with switched(on=kernel), RunningHashes(10) as hashes:
        result = hashes.later(failing)
        span = Span([b"x" * 30], [], False)
        digest = ended(hashes, span)
        with pytest.raises(LookupError, match="the work failed"):
            result()
        assert digest() == digest_of(span)


@pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "python"])
def test_error_of_other_work_does_not_end_a_span(kernel: bool) -> None:
    """Also if more pieces follow than may wait for the thread."""
    with switched(on=kernel), RunningHashes(10) as hashes:
        result = hashes.later(failing)
        spans = [Span([bytes([number]) * 30], [], False) for number in range(2 * AHEAD)]
        digests = [ended(hashes, span) for span in spans]
        assert [digest() for digest in digests] == list(map(digest_of, spans))
        with pytest.raises(LookupError, match="the work failed"):
            result()
