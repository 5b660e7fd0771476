"""The reference's conflicts, on examples worked out by hand."""

from __future__ import annotations

from typing import Any

from refold.avro.ids import identify
from refold.avro.observation import Observation
from refold_tests.examples import ENTITY, saw
from refold_tests.histories import EVERYTHING, with_offsets
from refold_tests.reference import reference_conflicts


class TestConflicts:
    def conflicts(self, *observations: Observation) -> list[tuple[str, str, Any]]:
        listed, count = reference_conflicts(EVERYTHING, ENTITY, with_offsets(observations))
        assert count == len(listed)
        return [(each["field"], each["agent"], each["value"]) for each in listed]

    def test_another_agents_differing_last_assertion_conflicts(self) -> None:
        ours = saw(3, {"last": 3}, agent="a")
        assert self.conflicts(ours, saw(1, {"last": 1}, agent="b")) == [("last", "b", 1)]
        assert self.conflicts(ours, saw(1, {"last": 1}, agent="a")) == []
        assert self.conflicts(ours, saw(1, {"last": 1}, agent="b"), saw(2, {"last": 3}, agent="b")) == []

    def test_higher_priority_settles_it(self) -> None:
        assert self.conflicts(saw(3, {"last": 3}, priority=1), saw(1, {"last": 1}, agent="b")) == []
        assert self.conflicts(
            saw(3, {"last": 3}, priority=1),
            saw(1, {"last": 1}, agent="b", priority=1),
            saw(2, {"last": 3}, agent="b"),
        ) == [("last", "b", 1)]

    def test_later_assertion_that_names_the_loser_settles_it(self) -> None:
        loser = saw(1, {"last": 1}, agent="b")
        cause = (identify(loser),)
        assert self.conflicts(loser, saw(3, {"last": 3}, causes=cause)) == []
        assert self.conflicts(loser, saw(3, {"last": 3}), saw(2, {"last": 2}, agent="c", causes=cause)) == [
            ("last", "c", 2)
        ]
        assert self.conflicts(loser, saw(3, {"last": 3}), saw(2, {"high": 2}, causes=cause)) == [("last", "b", 1)]
        assert self.conflicts(loser, saw(3, {"last": 3}), saw(0, {"last": 2}, causes=cause)) == [("last", "b", 1)]

    def test_retraction_and_clear_settle_it(self) -> None:
        winner, loser = saw(3, {"last": 3}), saw(1, {"last": 1}, agent="b")
        assert self.conflicts(winner, loser, saw(9, retracts=(identify(loser),))) == []
        assert self.conflicts(winner, loser, saw(2, cleared=("last",))) == []

    def test_winner_under_first_is_the_earliest(self) -> None:
        assert self.conflicts(saw(1, {"start": "a"}), saw(2, {"start": "b"}, agent="b")) == [("start", "b", "b")]
        assert self.conflicts(saw(1, {"start": "a"}), saw(2, {"start": "b"})) == [("start", "a", "b")]

    def test_map_keys_and_removals_conflict_individually(self) -> None:
        one, other = (
            saw(2, {"attrs": {"k": None, "l": "x"}}),
            saw(1, {"attrs": {"k": "x", "l": "x"}}, agent="b"),
        )
        listed, count = reference_conflicts(EVERYTHING, ENTITY, with_offsets([one, other]))
        assert count == 1
        assert listed == [{"field": "attrs", "key": "k", "agent": "b", "observation": identify(other), "value": "x"}]

    def test_eight_are_listed_and_all_are_counted(self) -> None:
        log = with_offsets([saw(number, {"last": number}, agent=f"agent-{number}") for number in range(12)])
        listed, count = reference_conflicts(EVERYTHING, ENTITY, log)
        assert [each["value"] for each in listed] == list(range(8))
        assert count == 11
