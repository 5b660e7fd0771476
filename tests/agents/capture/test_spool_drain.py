"""A spool is stored by a thread, which ends when the capture does. What was not kept is counted exactly once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from refold.agents.capture import spool as spool_module
from refold.agents.capture.sessions import Sessions
from refold.agents.capture.spool import MissedExchanges, Spool
from refold.agents.capture.spool_drain import SpoolDrain
from refold.agents.log import open_log
from refold.streams.open import process_context


class _FakeTime:
    """A clock that only `sleep` advances."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._now_s, self._meanwhile = 100.0, meanwhile

    def monotonic(self) -> float:
        return self._now_s

    def sleep(self, seconds: float) -> None:
        self._now_s += seconds
        self._meanwhile()


@pytest.mark.parametrize(
    ("is_busy", "bytes_max", "is_ending", "waited_s"),
    [
        (False, spool_module.BYTES_MAX, False, spool_module.PAUSE_S),
        (True, spool_module.BYTES_MAX, False, spool_module.BUSY_MAX_S),
        (True, 64, False, 0),
        (True, spool_module.BYTES_MAX, True, 0),
    ],
    ids=["until the pause", "for a limited time", "not if the spool fills up", "not at the end"],
)
def test_storing_waits_for_a_pause_in_the_traffic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_busy: bool, bytes_max: int, is_ending: bool, waited_s: float
) -> None:
    spool = Spool(tmp_path, process_context(), bytes_max)
    clock = _FakeTime(lambda: more() if is_busy else None)
    monkeypatch.setattr(spool_module, "time", clock)
    writer = spool.begin("POST example.com/", {}, 1)
    assert writer is not None
    more = partial(writer.add, b"more", 2.0)
    began_s = clock.monotonic()
    spool.wait_for_pause(lambda: is_ending)
    assert clock.monotonic() - began_s == pytest.approx(waited_s)
    writer.end("whole", 3.0)
    spool.close()


class _ClearedLate(threading.Event):
    """Its first `clear` begins, and has its effect after the next `set`."""

    def __init__(self) -> None:
        super().__init__()
        self.is_clearing, self._late = threading.Event(), True

    def clear(self) -> None:
        if self._late:
            self._late = False
            self.is_clearing.set()
            self.wait()
        super().clear()


def test_end_signalled_as_the_thread_starts_waiting_is_noticed(tmp_path: Path) -> None:
    runtime = process_context()
    spool = Spool(tmp_path / "spool", runtime)
    spool.kept = cleared = _ClearedLate()
    url = f"file:{tmp_path / 'log'}"
    storing = SpoolDrain(lambda: open_log(url), tmp_path / "spool", spool, "agent", {}, print, runtime)
    assert cleared.is_clearing.wait(60)
    assert storing.close(60.0).waiting == 0


def test_misses_during_recording_of_the_count_are_recorded_too(tmp_path: Path) -> None:
    runtime = process_context()
    spool = Spool(tmp_path / "spool", runtime)

    class Slow(Sessions):
        """While it records the first count, another exchange is missed."""

        def say_missed(self, missed: MissedExchanges, name: str) -> None:
            if missed.why == "first":
                spool.miss("second")
            super().say_missed(missed, name)

    spool.miss("first")
    url = f"file:{tmp_path / 'log'}"
    said: list[str] = []
    storing = SpoolDrain(
        lambda: open_log(url), tmp_path / "spool", spool, "agent", {}, said.append, runtime, sessions=Slow
    )
    assert storing.close(60.0).missed == 2
    assert said == ["1 exchange was not kept: first", "1 exchange was not kept: second"]
    with open_log(url, read_only=True) as log:
        failures = [log.recording(row.run).failure for row in log.runs()]
    assert sorted(each.message for each in failures if each) == said


@pytest.mark.parametrize("is_recorded", [False, True], ids=["asked", "recorded"])
def test_count_survives_its_process_with_its_id(tmp_path: Path, is_recorded: bool) -> None:
    """The process ends after the count was asked for, or after it was recorded."""
    runtime = process_context()
    spool = Spool(tmp_path, runtime)
    spool.miss("\x00" * 300)
    asked = spool.missed()
    spool.miss("later")
    assert spool.missed() == asked
    if is_recorded:
        spool.missed_stored()
    spool.close()
    again = Spool(tmp_path, runtime, folder=spool.folder)
    if not is_recorded:
        assert again.missed() == asked
        again.missed_stored()
    later = again.missed()
    assert (later.count, later.why) == (1, "later")
    assert later.id not in ("", asked.id)
    again.missed_stored()
    again.close()
    assert not spool.folder.exists()


def test_count_of_an_earlier_version_without_an_id_gets_one(tmp_path: Path) -> None:
    (tmp_path / "1-a").mkdir()
    (tmp_path / "1-a" / "missed").write_text('{"id":"","count":2,"first_at":1,"last_at":2,"why":"full"}'.ljust(512))
    spool = Spool(tmp_path, process_context(), folder=tmp_path / "1-a")
    missed = spool.missed()
    assert (missed.count, missed.why) == (2, "full")
    assert missed.id
    spool.close()
