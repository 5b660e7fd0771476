"""An index moved from cut to cut has the facts of a rebuild at each of them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.streams.client import Log
from refold.streams.cut import Cut
from refold.streams.entity_index import EntityIndex, EntityIndexes, facts, views
from refold.streams.view import EntityView

TYPE = "tool_config"
RECORDS = 240


def limit_of(view: EntityView) -> Any:
    """The fact of the tests: a field's value. Entities without the field are left out."""
    return view.fields.get("rate_limit")


def rebuilt_at(log: Log, cut: Cut) -> Mapping[str, Any]:
    view = log.rebuild(cut, types=[TYPE])
    found = {name: view[name].fields.get("rate_limit") for name in view}
    return {name: value for name, value in found.items() if value is not None}


def written(log: Log, chosen: random.Random) -> list[Cut]:
    """Write a history with late observations, clears, retractions and another type; return a cut after each part."""
    cuts: list[Cut] = []
    said: list[tuple[str, str]] = []
    for number in range(RECORDS):
        entity = f"{TYPE}/e{chosen.randrange(12)}"
        fate = chosen.random()
        if fate < 0.1 and said:
            log.retract(*chosen.choice(said))
        elif fate < 0.2:
            log.observe(entity, cleared=["rate_limit"])
        elif fate < 0.4:
            log.observe("document/other", {"fields": {"title": f"t{number}"}})
        else:
            at = 1_700_000_000_000_000 + chosen.randrange(1_000_000)
            said.append((entity, log.observe(entity, {"rate_limit": chosen.randrange(1_000)}, observed_at=at)))
        if chosen.random() < 0.1:
            cuts.append(log.point().cut)
    return cuts


@pytest.mark.parametrize("moved_max", [0, 30, 10_000], ids=["rebuilds", "both", "moves"])
def test_facts_are_those_of_a_rebuild(tmp_path: Path, seed: int, moved_max: int) -> None:
    chosen = random.Random(seed)
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        cuts = written(log, chosen)
        index = EntityIndex(TYPE, limit_of, moved_records_max=moved_max)
        for cut in chosen.choices(cuts, k=14):  # forwards, backwards, and again
            assert index.at(log, cut) == rebuilt_at(log, cut)


def test_near_cut_folds_only_changed_entities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        log.observe("document/a", {"fields": {"title": "one"}})
        for number in range(9):
            log.observe(f"{TYPE}/e{number}", {"rate_limit": number})
        log.indexes = EntityIndexes()
        first = facts(log, TYPE, limit_of, log.point().cut)
        log.observe(f"{TYPE}/e4", {"rate_limit": 100})
        log.observe("document/a", {"fields": {"title": "two"}})
        folded: list[str] = []
        states = Log.states
        monkeypatch.setattr(Log, "rebuild", None)

        def noted(log: Log, names: list[str], at: Cut) -> Mapping[str, EntityView]:
            folded.extend(names)
            return states(log, names, at)

        monkeypatch.setattr(Log, "states", noted)
        assert facts(log, TYPE, limit_of, log.point().cut) == {**first, f"{TYPE}/e4": 100}
        assert folded == [f"{TYPE}/e4"]
        assert first[f"{TYPE}/e4"] == 4  # an answer that was given does not change


def test_entities_of_a_type_are_the_same_with_and_without_an_index(tmp_path: Path) -> None:
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        for indexes in (None, EntityIndexes()):
            log.indexes = indexes
            assert views(log, "healing", log.point().cut) == {}
        cuts = []
        for number in range(4):
            log.observe("document/a", {"fields": {"title": f"t{number}"}})
            log.observe(f"{TYPE}/e{number % 3}", {"rate_limit": number})
            cuts.append(log.point().cut)
        expected = [{name: log.state(name, cut).fields for name in log.rebuild(cut, types=[TYPE])} for cut in cuts]
        for indexes in (None, EntityIndexes()):
            log.indexes = indexes
            found = [{name: view.fields for name, view in views(log, TYPE, cut).items()} for cut in cuts]
            assert found == expected


def test_cut_of_other_definitions_or_of_the_observed_clock_is_rebuilt(tmp_path: Path) -> None:
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        index = EntityIndex(TYPE, limit_of)
        assert index.at(log, log.point().cut) == {}  # nothing of the type was recorded
        log.observe(f"{TYPE}/a", {"rate_limit": 1}, observed_at=1_700_000_000_000_000)
        log.observe(f"{TYPE}/a", {"rate_limit": 2}, observed_at=1_700_000_009_000_000)
        now = log.point().cut
        assert index.at(log, now) == {f"{TYPE}/a": 2}
        assert index.at(log, now.until(1_700_000_005_000_000)) == {f"{TYPE}/a": 1}
        assert index.at(log, now) == {f"{TYPE}/a": 2}
