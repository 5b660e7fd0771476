"""Deadlines, on a clock that the test sets."""

from __future__ import annotations

from refold.streams.deadline import Deadline


def test_remaining_time_ends_at_zero_and_the_moment_itself_is_not_past() -> None:
    now_s = [100.0]
    deadline = Deadline(5.0, lambda: now_s[0])
    assert (deadline.left_s, deadline.is_past) == (5.0, False)
    now_s[0] = 105.0
    assert (deadline.left_s, deadline.is_past) == (0.0, False)
    now_s[0] = 105.5
    assert (deadline.left_s, deadline.is_past) == (0.0, True)
