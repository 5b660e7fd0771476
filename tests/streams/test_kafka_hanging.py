"""Calls of a client that may never return."""

from __future__ import annotations

import threading

import pytest

from refold.streams.log.kafka.clients import within


def test_what_comes_back_in_time() -> None:
    calls: list[threading.Thread] = []
    within(60, lambda: calls.append(threading.current_thread()))
    assert len(calls) == 1
    assert calls != [threading.current_thread()]


def test_what_it_raises() -> None:
    def fail() -> None:
        raise ValueError("as the client says it")

    with pytest.raises(ValueError, match="as the client says it"):
        within(60, fail)


def test_what_does_not_come_back() -> None:
    released, ended = threading.Event(), threading.Event()

    def hang() -> None:
        released.wait()
        ended.set()

    with pytest.raises(TimeoutError):
        within(0.05, hang)
    assert not ended.is_set()
    released.set()
    assert ended.wait(300)
