"""The reference's mutations, on examples worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from refold.avro.ids import identify
from refold.avro.observation import Observation
from refold_tests.examples import ENTITY, linked, saw
from refold_tests.histories import EVERYTHING, with_offsets
from refold_tests.reference import apply_mutations, reference_mutations


class TestMutations:
    def mutations(self, *observations: Observation) -> list[dict[str, Any]]:
        return reference_mutations(EVERYTHING, ENTITY, with_offsets(observations, start=10, gap=2))

    def test_scalar_is_set_and_cleared(self) -> None:
        one, clear = saw(1, {"last": 1}), saw(2, cleared=("last",))
        assert self.mutations(one, one, clear) == [
            {
                "offset": 10,
                "version": 1,
                "field": "last",
                "key": None,
                "op": "set",
                "old": None,
                "new": 1,
                "observation": identify(one),
                "by": identify(one),
            },
            {
                "offset": 14,
                "version": 2,
                "field": "last",
                "key": None,
                "op": "clear",
                "old": 1,
                "new": None,
                "observation": identify(clear),
                "by": identify(clear),
            },
        ]

    def test_retraction_restores_an_older_holder(self) -> None:
        one, two = saw(1, {"last": 1}), saw(2, {"last": 2})
        retraction = saw(3, retracts=(identify(two),))
        last = self.mutations(one, two, retraction)[-1]
        assert (last["op"], last["old"], last["new"]) == ("set", 2, 1)
        assert (last["observation"], last["by"]) == (identify(one), identify(retraction))

    def test_new_holder_of_an_equal_value_is_no_mutation(self) -> None:
        assert len(self.mutations(saw(1, {"last": 1, "tags": ["a"]}), saw(2, {"last": 1, "tags": ["a"]}))) == 2
        assert len(self.mutations(saw(2, {"high": 1}), saw(1, {"high": 1}))) == 1

    def test_late_loser_is_no_mutation(self) -> None:
        assert [each["version"] for each in self.mutations(saw(2, {"last": 2}), saw(1, {"last": 1}))] == [1]

    def test_holder_of_sum_and_count_is_their_cause(self) -> None:
        target = saw(1, {"total": 1, "hits": 0})
        retraction = saw(3, retracts=(identify(target),))
        changed = self.mutations(target, saw(2, {"total": 2, "hits": 0}), retraction)[-2:]
        assert [(each["field"], each["old"], each["new"]) for each in changed] == [
            ("hits", 2, 1),
            ("total", 3, 2),
        ]
        assert {each["observation"] for each in changed} == {identify(retraction)}

    def test_map_keys_are_added_set_and_removed(self) -> None:
        found = self.mutations(
            saw(1, {"attrs": {"b": "x", "a": "x"}}),
            saw(2, {"attrs": {"a": "y"}}),
            saw(3, {"attrs": {"a": None}}),
        )
        assert [(each["op"], each["key"], each["old"], each["new"]) for each in found] == [
            ("add", "a", None, "x"),
            ("add", "b", None, "x"),
            ("set", "a", "x", "y"),
            ("remove", "a", "y", None),
        ]

    def test_append_names_its_items_by_q_and_index(self) -> None:
        late, early = saw(2, {"log": [7, 8, 9]}), saw(1, {"log": [1]}, agent="b")
        removal = saw(3, retracts=(identify(late),))
        found = self.mutations(late, early, removal)
        key = [2, "a", "", 0, identify(late).hex()]
        assert [(each["op"], each["key"]) for each in found[:3]] == [
            ("add", [key, 0]),
            ("add", [key, 1]),
            ("add", [key, 2]),
        ]
        assert [(each["version"], each["op"], each["old"], each["new"]) for each in found[3:]] == [
            (3, "add", None, 1),
            (3, "remove", 7, None),
            (3, "remove", 8, None),
            (3, "remove", 9, None),
        ]
        assert found[3]["observation"] == identify(early)

    def test_links_are_added_set_and_removed(self) -> None:
        found = self.mutations(linked("link", 1), linked("link", 2, valid_to=9), linked("unlink", 3))
        assert [(each["field"], each["op"], each["old"], each["new"]) for each in found] == [
            ("links", "add", None, {}),
            ("links", "set", {}, {"valid_to": 9}),
            ("links", "remove", {"valid_to": 9}, None),
        ]
        assert found[0]["key"] == ["about", "document/x"]

    def test_mismatching_mutation_is_not_applied(self) -> None:
        added = self.mutations(saw(1, {"attrs": {"a": "x"}}))
        once = apply_mutations(EVERYTHING, {}, added)
        with pytest.raises(AssertionError):
            apply_mutations(EVERYTHING, once, added)
