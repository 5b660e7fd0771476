"""An archive answers every query like its origin: random logs, with all queries."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold.avro.errors import RefoldError
from refold.avro.times import time_text
from refold.streams.client import Log
from refold.streams.exchange.archive_form import Definition
from refold.streams.exchange.archive_import import read_items
from refold.streams.exchange.files import ExchangeFile
from refold.streams.log.port import Record
from refold_tests.archives import LATER, TYPES, archived, contents_of, restored
from refold_tests.clock import BEGIN_MS, FileClock
from refold_tests.histories import ENTITIES, random_history
from refold_tests.opening import open_log, take
from refold_tests.sample_types import OTHER, PICKY, THING, A, said


class History:
    """A random log; `whens` are points that it can be asked for."""

    def __init__(self, path: Path, seed: int, length: int) -> None:
        self.path = path
        self.rng = random.Random(seed)
        self.whens: list[str] = []
        self.log = open_log(path, partitions=self.rng.choice((1, 2, 8)), types=TYPES)
        self.clock = FileClock(path / "clock")
        self.definitions = [THING, PICKY, *LATER]
        observations = random_history(seed, length)
        while observations:
            self._step(observations)
        self.entities = sorted(
            {*ENTITIES, *(f"everything/{n}" for n in range(4)), A, "step/r#1", "step/r#2", "document/d"}
        )
        self._choose()

    def _step(self, observations: list[Any]) -> None:
        rng, log = self.rng, self.log
        self.clock.set(self.clock() + rng.choice((0, 0, 1, 2, 7)))
        some = observations[: rng.choice((1, 2, 3, 20))]
        del observations[: len(some)]
        take(log, some, self.definitions[0])
        chance = rng.random()
        if chance < 0.1 and len(self.definitions) > 1:
            del self.definitions[0]
            log.register(self.definitions[0])
        elif chance < 0.2:
            log.observe(f"step/r#{rng.choice((1, 2))}", {"last": rng.randrange(9)}, source="steps")
        elif chance < 0.3:
            size = rng.choice((10, 300_000))
            log.observe(
                "document/d", {"fields": {str(rng.randrange(3)): str(rng.randrange(4)) * size}}, source="documents"
            )
        elif chance < 0.35:
            take(log, [said(f"{OTHER.name}/o", rng.randrange(3))])
        elif chance < 0.45:
            log.mark(f"m{rng.randrange(5)}", replace=True)
        log.flush()
        if rng.random() < 0.3:
            self.whens.append(str(log.point().cut))

    def _choose(self) -> None:
        """Points of every form, those that cannot be answered among them."""
        rng, ends = self.rng, self.log.port.ends()
        now = self.clock()
        self.clock.set(now + rng.choice((0, 1, 4_000, 60_000)))
        self.whens += [f"@m{number}" for number in range(5)]
        self.whens += [time_text((BEGIN_MS + rng.randrange(-1, now - BEGIN_MS + 1)) * 1000 + 500) for _ in range(8)]
        for _ in range(5):
            part = rng.sample(sorted(ends), rng.randrange(1, len(ends) + 1))
            self.whens.append("offset:" + ",".join(f"{each}={rng.randrange(ends[each] + 2)}" for each in part))
        self.whens += [f"v{rng.randrange(1, 40)}" for _ in range(6)]
        self.whens += ["run:r#1", "run:r#2", "run:r#3", "now", self.log.point().cut.short]


def outcome(ask: Callable[[], Any]) -> Any:
    """What it gives, or how it refuses."""
    try:
        return ask()
    except RefoldError as error:
        return type(error), str(error)


def answers(log: Log, when: str, entity: str, clock: str) -> list[Any]:
    """Every query about an entity, and about the whole log, at a point."""

    def point() -> Any:
        found = log.point(when, entity, clock)
        return str(found.cut), found.open

    def state() -> Any:
        found = log.state(entity, when, clock)
        whys = [sorted(found.why(name)) for name in sorted(found.fields)]
        holders = [found.holder(name) for name in sorted(found.fields)]
        return found.tree, found.state_hash, found.version, found.conflicts, whys, holders

    def rebuilt() -> Any:
        view = log.rebuild(log.point(when, entity, clock).cut)
        return view.root, view.observations, sorted(view)

    return [
        outcome(point),
        outcome(state),
        outcome(rebuilt),
        outcome(lambda: log.history(entity, until=when, clock=clock)),
        outcome(lambda: log.history(entity, since=when, clock=clock)),
        outcome(lambda: log.diff(when, "now", entity)),
    ]


def assert_same_log(one: Log, other: Log) -> None:
    """Equal records, definitions, markers and identity."""
    a, b = one.port, other.port
    assert (a.log_id, a.partitions, a.ends()) == (b.log_id, b.partitions, b.ends())
    for partition, end in a.ends().items():
        assert list(a.read(partition, 0, end)) == list(b.read(partition, 0, end))
    kept = [
        [(each.offset, each.registered_at, each.definition.fingerprint) for each in port.registry] for port in (a, b)
    ]
    assert kept[0] == kept[1]
    assert list(a.markers()) == list(b.markers())
    assert list(a.deadletters()) == list(b.deadletters())


@pytest.mark.parametrize("number", range(8))
def test_archive_answers_every_question_as_the_origin_did(tmp_path: Path, seed: int, number: int) -> None:
    print(f"seed {seed}")
    (tmp_path / "origin").mkdir()
    history = History(tmp_path / "origin", seed * 100 + number, 90)
    file = archived(history.log, tmp_path / "x.avro")
    copied = restored(file, tmp_path / "copied", now_ms=history.clock())
    with history.log as origin, open_log(copied, read_only=True, types=TYPES) as copy:
        assert copy.port.archived_at == history.clock()
        assert_same_log(origin, copy)
        for when in history.whens:
            for clock in ("recorded", "observed") if when.startswith("20") else ("recorded",):
                entity = history.rng.choice(history.entities)
                asked = (when, entity, clock)
                assert answers(copy, *asked) == answers(origin, *asked), asked
        assert copy.verify().mismatches == []
        assert contents_of(copied) == contents_of(tmp_path / "origin")
        again = archived(copy, tmp_path / "again.avro")
        assert again.read_bytes() == file.read_bytes(), "an archive of an archive is the same file"


def test_archived_histories_are_complete(tmp_path: Path, seed: int) -> None:
    """The property above is about something: redefinitions, contents, markers, repeats and ties are among them."""
    found: dict[str, int] = {}
    for number in range(8):
        path = tmp_path / str(number)
        path.mkdir()
        history = History(path, seed * 100 + number, 90)
        with history.log as log:
            items = [item for _, item in read_items(ExchangeFile(archived(log, path / "x.avro")))]
        records = [item for item in items if isinstance(item, Record)]
        found["repeats"] = found.get("repeats", 0) + len(records) - len({each.id for each in records})
        found["ties"] = found.get("ties", 0) + len(records) - len({each.recorded_at for each in records})
        for item in items:
            found[type(item).__name__] = found.get(type(item).__name__, 0) + 1
        for item in items:
            if isinstance(item, Definition) and item.offset > 3:
                found["redefined"] = found.get("redefined", 0) + 1
    assert min(found[name] for name in ("repeats", "ties", "redefined", "Content", "Marked")) > 0, found
