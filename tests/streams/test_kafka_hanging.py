"""Calls of a client that may never return."""

from __future__ import annotations

import threading

import pytest

from refold.streams.log.kafka.clients import call_within


def test_call_that_returns_in_time() -> None:
    calls: list[threading.Thread] = []
    call_within(60, lambda: calls.append(threading.current_thread()))
    assert len(calls) == 1
    assert calls != [threading.current_thread()]


def test_call_that_raises() -> None:
    def fail() -> None:
        raise ValueError("as the client says it")

    with pytest.raises(ValueError, match="as the client says it"):
        call_within(60, fail)


def test_call_that_hangs() -> None:
    released, ended = threading.Event(), threading.Event()

    def hang() -> None:
        released.wait()
        ended.set()

    with pytest.raises(TimeoutError):
        call_within(0.05, hang)
    assert not ended.is_set()
    released.set()
    assert ended.wait(300)
