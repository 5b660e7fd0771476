"""The map of `.manifests` can be read while a refresh waits for a broker that does not answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from threading import Event, Thread

import pytest

from refold.streams.log.kafka.foreign_records import ForeignRecords
from refold.streams.log.kafka.manifests import MARKERS, ManifestMap
from refold.streams.log.kafka.offsets import KafkaPartition, Offsets
from refold.streams.log.kafka.range_reader import LogReaders, RawRecord
from refold.streams.log.port import Marked
from refold.streams.log.stored_markers import MARKER, marker_key, marker_value
from refold_tests.waiting import WAIT_S

FIRST, SECOND = (Marked(name, f"cut:{name}", 1) for name in ("a", "b"))


class Broker:
    """Two records; after the first was read, the next question for the end waits until it may be answered."""

    def __init__(self) -> None:
        self.records = [
            RawRecord(at, 1, marker_key(each.name), marker_value(each), []) for at, each in enumerate((FIRST, SECOND))
        ]
        self.is_away = Event()
        self.is_asked = Event()
        self.is_back = Event()

    def ends(self, places: Iterable[KafkaPartition]) -> dict[KafkaPartition, int]:
        if not self.is_away.is_set():
            return dict.fromkeys(places, 1)
        self.is_asked.set()
        assert self.is_back.wait(WAIT_S)
        return dict.fromkeys(places, 2)

    def read(self, place: KafkaPartition, start: int, end: int) -> Iterator[RawRecord]:
        yield from self.records[start:end]


def test_known_epochs_are_answered_while_a_refresh_waits_for_its_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, offsets, reading = Broker(), Offsets.__new__(Offsets), LogReaders.__new__(LogReaders)
    monkeypatch.setattr(offsets, "ends", broker.ends)
    monkeypatch.setattr(reading, "records", broker.read)
    manifests = ManifestMap("m", 1, offsets, reading, lambda: 0.0, ForeignRecords())
    manifests.refresh()
    broker.is_away.set()
    waiting = Thread(target=manifests.refresh, daemon=True)
    waiting.start()
    assert broker.is_asked.wait(WAIT_S)
    answers: list[object] = []
    asking = Thread(
        target=lambda: answers.extend([manifests.get(MARKERS, marker_key("a")), manifests.scan(MARKERS, MARKER)]),
        daemon=True,
    )
    asking.start()
    asking.join(WAIT_S)
    assert answers == [marker_value(FIRST), [(marker_key("a"), marker_value(FIRST))]]
    broker.is_back.set()
    waiting.join(WAIT_S)
    assert [key for key, _ in manifests.scan(MARKERS, MARKER)] == [marker_key("a"), marker_key("b")]
