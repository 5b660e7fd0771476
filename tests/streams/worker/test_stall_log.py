"""The cause for which a partition waits is logged once."""

from __future__ import annotations

import logging

import pytest

from refold.streams.worker.condition import StallLog


def test_stall_is_logged_when_it_starts_changes_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    waits = StallLog("partition")
    with caplog.at_level(logging.INFO):
        for waits_for in ("", "a", "a", "b", "", "", "b"):
            waits.note(3, waits_for)
            assert waits.of(3) == waits_for
    assert caplog.messages == [
        "partition 3 waits: a", "partition 3 waits: b", "partition 3 goes on", "partition 3 waits: b",
    ]  # fmt: skip
    assert waits.of(4) == ""


def test_partition_taken_over_starts_a_new_stall(caplog: pytest.LogCaptureFixture) -> None:
    waits = StallLog("partition")
    with caplog.at_level(logging.INFO):
        waits.note(3, "a")
        waits.forget(3)
        waits.note(3, "a")
        waits.note(4, "")
    assert caplog.messages == ["partition 3 waits: a"] * 2
