"""The partitions, offsets and rows that the kernel gives appended observations, against Python's."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import refold
from refold.avro.kernel import Kernel, find_kernel
from refold.streams.log.file.numbering import numbered
from refold.streams.log.port import AppendedObservation, Record
from refold.streams.table import batch_fold
from refold.streams.table.checked import checked_records

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
PARTITIONS = st.sampled_from([1, 2, 8, 1024])


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    found = find_kernel().kernel
    assert found is not None
    return found


@given(st.data())
def test_batch_is_numbered_as_python_numbers_it(kernel: Kernel, data: st.DataObject) -> None:
    names = data.draw(st.lists(NAMES, min_size=1, max_size=6))
    ids = st.binary(min_size=32, max_size=32)
    appended = st.builds(AppendedObservation, st.sampled_from(names), ids, st.binary(max_size=40), st.none())
    batch = data.draw(st.lists(appended, max_size=30))
    partitions = data.draw(PARTITIONS)
    ends = {partition: data.draw(st.integers(0, 1 << 40)) if partition < 8 else 0 for partition in range(partitions)}
    recorded_at = data.draw(st.integers(0, 1 << 50))
    by_kernel, by_python = (numbered(each, batch, ends, recorded_at) for each in (kernel, None))
    assert by_kernel.decided is not None
    assert checked_records(by_kernel.decided) == by_python.checked
    assert list(by_kernel.through.items()) == list(by_python.through.items())
    keys = by_kernel.rows[::2]
    assert all(one < other for one, other in pairwise(keys))
    python_rows = dict(zip(by_python.rows[::2], by_python.rows[1::2], strict=True))
    assert dict(zip(keys, by_kernel.rows[1::2], strict=True)) == python_rows


USUAL = AppendedObservation("a/b", bytes(32), b"")


@pytest.mark.parametrize(
    "odd",
    [("x" * 65_536, bytes(32), b""), ("\ud800", bytes(32), b""), ("a/b", bytes(31), b""), (b"a/b", bytes(32), b"")],
    ids=["long", "surrogate", "short id", "bytes"],
)
def test_unusual_observation_is_left_to_python(kernel: Kernel, odd: tuple[object, ...]) -> None:
    assert kernel.numbered([USUAL], {0: 0}, 5, 1) is not None
    assert kernel.numbered([USUAL, odd], {0: 0}, 5, 1) is None


@pytest.mark.parametrize(
    ("ends", "recorded_at"), [({0: -1}, 5), ({0: (1 << 63) - 1}, 5), ({0: 0}, -1), ({1: 0}, 5)],
    ids=["negative offset", "last offset", "negative time", "no such partition"],
)  # fmt: skip
def test_impossible_number_is_left_to_python(kernel: Kernel, ends: dict[int, int], recorded_at: int) -> None:
    assert kernel.numbered([USUAL], ends, recorded_at, 1) is None


def test_observation_that_python_folds_is_not_decoded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(registry: object, record: Record) -> None:
        raise AssertionError(f"decoded again: {record}")

    with refold.open(f"file:{tmp_path}/log") as log:
        first = log.observe("tool_config/a", {"rate_limit": 1})
        log.flush()
        with monkeypatch.context() as patched:
            patched.setattr(batch_fold, "observation_in", refuse)
            log.retract("tool_config/a", first)  # which the kernel leaves to Python
            log.flush()
        assert log.verify().ok
