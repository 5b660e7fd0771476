"""The reference fold itself, on examples worked out by hand: one for each rule it is trusted with."""

from __future__ import annotations

import hashlib
import json
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.avro.definition import REDUCERS, parse
from refold.avro.envelope import check_decoded
from refold.avro.ids import identify
from refold.avro.observation import Kind, Link, Observation, Source
from refold.avro.values import checker
from refold_tests.histories import (
    EVERYTHING,
    EVERYTHING_AVSC,
    histories,
    random_history,
    with_offsets,
)
from refold_tests.reference import (
    FieldSpec,
    Replayed,
    apply_mutations,
    encode,
    exact_sum,
    murmur2,
    reference_conflicts,
    reference_hash,
    reference_mutations,
    reference_root,
    reference_slot,
    reference_state,
    reference_states,
    reference_true_at,
    replayed_fields,
    replayed_links,
)

ENTITY = "everything/1"
DOUBLE_MAX = 1.7976931348623157e308
EVERYTHING_DEFINITION = parse(
    json.loads(EVERYTHING_AVSC), lambda function: {"name": function, "version": "1", "source": ""}
)


def saw(observed_at: int, patch: dict[str, Any] | None = None, **envelope: Any) -> Observation:
    """An assert about ENTITY; the source is given as agent, run and seq."""
    source = Source(envelope.pop("agent", "a"), envelope.pop("run", ""), "", "", envelope.pop("seq", 0))
    return Observation(
        **{"entity": ENTITY, "observed_at": observed_at, "source": source, "patch": patch or {}, **envelope}
    )


def linked(kind: Kind, observed_at: int, priority: int = 0, **validity: int) -> Observation:
    return saw(observed_at, kind=kind, priority=priority, link=Link("about", "document/x", **validity))


def state_of(*observations: Observation) -> dict[str, Any]:
    return reference_state(EVERYTHING, ENTITY, with_offsets(observations))


def fields_of(*observations: Observation) -> dict[str, Any]:
    fields: dict[str, Any] = state_of(*observations)["fields"]
    return fields


class TestOrder:
    def test_latest_goes_by_observed_at_and_not_by_arrival(self) -> None:
        late, early = saw(2, {"last": 20}), saw(1, {"last": 10})
        for log in ((late, early), (early, late)):
            state = state_of(*log)
            assert state["fields"] == {"last": 20}
            assert state["by"] == {"last": identify(late)}

    @pytest.mark.parametrize(
        ("less", "greater"),
        [
            ({"agent": "a", "run": "z", "seq": 9}, {"agent": "b", "run": "", "seq": 0}),
            ({"agent": "a", "run": "r"}, {"agent": "ab", "run": ""}),
            ({"run": "r", "seq": 9}, {"run": "s", "seq": 0}),
            ({"seq": 9}, {"seq": 10}),
            ({"agent": "\uffff"}, {"agent": "\U00010000"}),
            ({"agent": "", "run": "z"}, {"agent": "a"}),
        ],
    )
    def test_at_one_time_agent_then_run_then_seq_decide(self, less: Any, greater: Any) -> None:
        assert fields_of(saw(1, {"last": 2}, **greater), saw(1, {"last": 1}, **less)) == {"last": 2}

    def test_last_of_all_the_id_decides(self) -> None:
        one, other = saw(1, {"last": 1}), saw(1, {"last": 2})
        greater = max(one, other, key=identify)
        assert state_of(one, other)["by"] == {"last": identify(greater)}


class TestReducers:
    def test_latest_takes_the_greatest_priority_before_the_greatest_q(self) -> None:
        assert fields_of(saw(1, {"last": 1}, priority=1), saw(9, {"last": 9})) == {"last": 1}

    def test_first_takes_the_least_q_within_the_greatest_priority(self) -> None:
        base = (saw(1, {"start": "a"}), saw(2, {"start": "b"}))
        assert fields_of(*base) == {"start": "a"}
        assert fields_of(*base, saw(8, {"start": "x"}, priority=1), saw(7, {"start": "y"}, priority=1)) == {
            "start": "y"
        }

    def test_min_and_max_ignore_priority_and_the_least_q_holds_equals(self) -> None:
        early, late = saw(1, {"low": -3, "high": 5}), saw(2, {"low": -3, "high": 5}, priority=7)
        state = state_of(late, early, saw(0, {"low": 0.5, "high": 4}, priority=9))
        assert state["fields"] == {"low": -3, "high": 5}
        assert state["by"] == {"low": identify(early), "high": identify(early)}

    def test_sum_and_count_are_of_live_assertions_and_their_by_is_how_many(self) -> None:
        state = state_of(saw(1, {"total": 1, "hits": 7}), saw(2, {"total": 0.5}), saw(3, {"hits": 7}))
        assert state["fields"] == {"total": 1.5, "hits": 2}
        assert state["by"] == {"total": 2, "hits": 2}

    def test_a_sum_of_zero_is_there(self) -> None:
        assert fields_of(saw(1, {"total": 0.1}), saw(2, {"total": -0.1})) == {"total": 0}

    def test_union_is_ordered_by_cbor_and_the_least_q_holds_an_element(self) -> None:
        late, early = saw(2, {"tags": ["b", "aa", "b"]}, priority=1), saw(1, {"tags": ["b"]})
        state = state_of(late, early)
        assert state["fields"] == {"tags": ["b", "aa"]}  # a shorter text has the lesser head byte
        assert state["by"] == {"tags": [identify(early), identify(late)]}

    def test_append_is_the_last_items_in_q_and_place_in_the_list(self) -> None:
        late, early = saw(2, {"log": [5, 5]}), saw(1, {"log": [1, 2, 3]}, priority=9)
        state = state_of(late, early)
        assert state["fields"] == {"log": [3, 5, 5]}
        assert state["by"] == {"log": [identify(early), identify(late), identify(late)]}

    def test_map_folds_each_key_by_priority_and_q(self) -> None:
        one = saw(1, {"attrs": {"a": "x", "b": "x"}}, priority=1)
        two = saw(2, {"attrs": {"a": "y", "c": "y"}})
        state = state_of(one, two)
        assert state["fields"] == {"attrs": {"a": "x", "b": "x", "c": "y"}}
        assert state["by"] == {"attrs": {"a": identify(one), "b": identify(one), "c": identify(two)}}

    def test_a_null_that_wins_removes_its_key_also_from_what_comes_below_it(self) -> None:
        assert fields_of(saw(1, {"attrs": {"a": "x"}}), saw(2, {"attrs": {"a": None}})) == {}
        removed = saw(1, {"attrs": {"a": None}}, priority=1)
        assert fields_of(removed, saw(2, {"attrs": {"a": "x", "b": "x"}})) == {"attrs": {"b": "x"}}

    def test_custom_folds_in_q_and_its_last_assertion_holds(self) -> None:
        third, first, second = saw(3, {"folded": 4}), saw(1, {"folded": 1}), saw(2, {"folded": 2}, priority=9)
        state = state_of(third, first, second)
        assert state["fields"] == {"folded": (1 * 3 + 2) * 3 + 4}
        assert state["by"] == {"folded": identify(third)}

    def test_custom_may_see_the_envelope_and_may_leave_the_field_absent(self) -> None:
        def heaviest(value: Any, assertion: Any) -> Any:
            return max(value or 0, assertion.priority * assertion.observed_at) or None

        definition = {"best": FieldSpec("custom", function=heaviest)}
        log = with_offsets([saw(5, {"best": 0}, priority=2)])
        assert reference_state(definition, ENTITY, log)["fields"] == {"best": 10}
        assert reference_state(definition, ENTITY, with_offsets([saw(5, {"best": 0})]))["fields"] == {}

    def test_an_empty_collection_is_absent(self) -> None:
        state = state_of(saw(1, {"tags": [], "log": [], "attrs": {}}))
        assert (state["fields"], state["by"], state["version"]) == ({}, {}, 1)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1e16, 1, -1e16), 1),
        ((0.1, 0.2), 0.30000000000000004),  # halfway: to even
        ((0.1,) * 10, 1),  # rounding makes it integral
        ((1, 2.0**-53), 1),  # halfway: to even
        ((1, 2.0**-53, 2.0**-106), 1 + 2.0**-52),  # just past halfway, rounded once
        ((DOUBLE_MAX, DOUBLE_MAX, -DOUBLE_MAX), DOUBLE_MAX),  # no overflow on the way
        ((DOUBLE_MAX, DOUBLE_MAX), DOUBLE_MAX),
        ((-DOUBLE_MAX, -(2.0**970)), -DOUBLE_MAX),
        ((2**53, 1), 2**53 + 1),  # an integer is not rounded to a double
        ((-(2**53), -1), -(2**53) - 1),
        ((2**63, 2**63 - 1), 2**64 - 1),
        ((2**63, 2**63), 2.0**64),
        ((-(2**63), -1), -(2**63)),  # out of range: rounded to a double, which is in range
        ((5e-324, 5e-324), 1e-323),
        ((0.5, -0.5), 0),
    ],
)
def test_a_sum_is_exact_and_rounded_once(values: tuple[int | float, ...], expected: int | float) -> None:
    for order in (values, values[::-1]):
        total = exact_sum(order)
        assert (total, type(total)) == (expected, type(expected))


class TestClears:
    def test_a_clear_hides_what_is_below_it_in_q_whatever_the_priority(self) -> None:
        clear = saw(5, cleared=("last",))
        assert fields_of(saw(4, {"last": 4}, priority=9), clear) == {}
        assert fields_of(saw(4, {"last": 4}, priority=9), clear, saw(6, {"last": 6}, priority=-1)) == {"last": 6}

    def test_a_clear_comes_before_what_it_hides_in_the_log(self) -> None:
        assert fields_of(saw(5, cleared=("total",)), saw(4, {"total": 4}), saw(6, {"total": 6})) == {"total": 6}

    @pytest.mark.parametrize("field", list(EVERYTHING))
    def test_every_reducer_is_cleared(self, field: str) -> None:
        patch = {"start": "a", "tags": ["a"], "log": [1], "attrs": {"a": "x"}}
        assertion = saw(1, {field: patch.get(field, 1)}, priority=1)
        assert field in fields_of(assertion)
        assert fields_of(assertion, saw(2, cleared=(field,))) == {}

    def test_an_observation_may_clear_and_assert_the_same_field(self) -> None:
        assert fields_of(saw(1, {"tags": ["a"]}), saw(2, {"tags": ["b"]}, cleared=("tags",))) == {"tags": ["b"]}

    def test_a_clear_at_the_same_time_is_placed_by_the_rest_of_q(self) -> None:
        below, above = saw(1, {"tags": ["below"]}, seq=0), saw(1, {"tags": ["above"]}, seq=2)
        assert fields_of(below, above, saw(1, cleared=("tags",), seq=1)) == {"tags": ["above"]}

    def test_a_retracted_clear_hides_nothing(self) -> None:
        clear = saw(5, cleared=("last",))
        assert fields_of(saw(4, {"last": 4}), clear, saw(6, retracts=(identify(clear),))) == {"last": 4}


class TestRetractions:
    def test_a_retraction_comes_before_or_after_its_target(self) -> None:
        target, kept = saw(2, {"last": 2}), saw(1, {"last": 1})
        retraction = saw(0, retracts=(identify(target),))
        for log in ((target, kept, retraction), (retraction, kept, target)):
            state = state_of(*log)
            assert (state["fields"], state["version"]) == ({"last": 1}, 3)

    def test_a_correction_retracts_and_asserts(self) -> None:
        wrong = saw(1, {"total": 10})
        state = state_of(saw(0, {"total": 1}), wrong, saw(1, {"total": 5}, retracts=(identify(wrong),), seq=1))
        assert (state["fields"], state["by"]) == ({"total": 6}, {"total": 2})

    def test_what_a_retracted_observation_retracts_stays_retracted(self) -> None:
        target = saw(1, {"last": 1})
        correction = saw(2, {"last": 2}, retracts=(identify(target),))
        state = state_of(target, correction, saw(3, retracts=(identify(correction),)))
        assert (state["fields"], state["by"], state["version"]) == ({}, {}, 3)

    def test_it_acts_on_its_own_entity_only(self) -> None:
        target = saw(1, {"last": 1})
        elsewhere = saw(2, entity="everything/2", retracts=(identify(target),))
        assert fields_of(target, elsewhere) == {"last": 1}

    def test_an_unknown_id_is_no_matter(self) -> None:
        assert fields_of(saw(1, {"last": 1}), saw(2, retracts=(bytes(32),))) == {"last": 1}

    def test_a_link_is_retracted_like_an_assertion(self) -> None:
        link, unlink = linked("link", 1), linked("unlink", 2)
        assert state_of(link, unlink, saw(3, retracts=(identify(unlink),)))["links"][0]["by"] == identify(link)


class TestVersionsAndPresence:
    def test_a_duplicate_changes_nothing(self) -> None:
        once = saw(1, {"total": 1, "log": [1]})
        assert state_of(once, once, once) == state_of(once)
        assert state_of(once)["version"] == 1

    def test_an_entity_of_retracted_observations_is_there_and_empty(self) -> None:
        target = saw(1, {"last": 1})
        assert state_of(target, saw(2, retracts=(identify(target),))) == {
            "format": 1,
            "entity": ENTITY,
            "version": 2,
            "fields": {},
            "by": {},
            "links": [],
        }

    def test_an_entity_that_is_only_referred_to_is_not_there(self) -> None:
        with pytest.raises(LookupError):
            state_of(saw(1, entity="everything/2"))
        link = saw(1, kind="link", link=Link("about", "document/x"))
        assert list(reference_states(EVERYTHING, with_offsets([link]))) == [ENTITY]


class TestLinks:
    def test_the_greatest_priority_then_q_wins_and_brings_its_validity(self) -> None:
        winner = linked("link", 1, priority=1, valid_from=0)
        assert state_of(linked("link", 2, valid_to=5), winner)["links"] == [
            {"relation": "about", "target": "document/x", "by": identify(winner), "valid_from": 0}
        ]

    def test_an_unlink_of_less_priority_does_not_unlink(self) -> None:
        assert len(state_of(linked("link", 1, priority=1), linked("unlink", 2))["links"]) == 1
        assert state_of(linked("link", 1), linked("unlink", 2))["links"] == []
        assert state_of(linked("unlink", 1, priority=1), linked("link", 2))["links"] == []

    def test_links_are_ordered_by_the_cbor_of_relation_and_target(self) -> None:
        pairs = [("bb", "x"), ("a", "zz"), ("a", "yyy"), ("a", "z")]
        log = [saw(1, kind="link", link=Link(*pair), seq=seq) for seq, pair in enumerate(pairs)]
        ordered = [(link["relation"], link["target"]) for link in state_of(*log)["links"]]
        assert ordered == [("a", "z"), ("a", "zz"), ("a", "yyy"), ("bb", "x")]


class TestTrueAt:
    def test_it_takes_what_was_observed_by_then(self) -> None:
        log = with_offsets([saw(3, {"last": 3}), saw(1, {"last": 1}), saw(2, {"last": 2})])
        state = reference_true_at(EVERYTHING, ENTITY, log, 2)
        assert state is not None
        assert (state["fields"], state["version"]) == ({"last": 2}, 2)
        assert reference_true_at(EVERYTHING, ENTITY, log, 0) is None

    def test_a_later_retraction_speaks_of_all_times(self) -> None:
        wrong, kept = saw(2, {"last": 2}), saw(1, {"last": 1})
        log = with_offsets([wrong, kept, saw(9, {"last": 9}, retracts=(identify(wrong),))])
        state = reference_true_at(EVERYTHING, ENTITY, log, 2)
        assert state is not None
        assert (state["fields"], state["version"]) == ({"last": 1}, 1)

    def test_a_later_clear_does_not(self) -> None:
        state = reference_true_at(EVERYTHING, ENTITY, with_offsets([saw(1, {"last": 1}), saw(9, cleared=("last",))]), 2)
        assert state is not None
        assert state["fields"] == {"last": 1}


class TestConflicts:
    def conflicts(self, *observations: Observation) -> list[tuple[str, str, Any]]:
        listed, count = reference_conflicts(EVERYTHING, ENTITY, with_offsets(observations))
        assert count == len(listed)
        return [(each["field"], each["agent"], each["value"]) for each in listed]

    def test_another_agents_differing_last_word_loses(self) -> None:
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

    def test_a_later_assertion_that_names_the_loser_settles_it(self) -> None:
        loser = saw(1, {"last": 1}, agent="b")
        cause = (identify(loser),)
        assert self.conflicts(loser, saw(3, {"last": 3}, causes=cause)) == []
        assert self.conflicts(loser, saw(3, {"last": 3}), saw(2, {"last": 2}, agent="c", causes=cause)) == [
            ("last", "c", 2)
        ]
        assert self.conflicts(loser, saw(3, {"last": 3}), saw(2, {"high": 2}, causes=cause)) == [("last", "b", 1)]
        assert self.conflicts(loser, saw(3, {"last": 3}), saw(0, {"last": 2}, causes=cause)) == [("last", "b", 1)]

    def test_a_retraction_and_a_clear_settle_it(self) -> None:
        winner, loser = saw(3, {"last": 3}), saw(1, {"last": 1}, agent="b")
        assert self.conflicts(winner, loser, saw(9, retracts=(identify(loser),))) == []
        assert self.conflicts(winner, loser, saw(2, cleared=("last",))) == []

    def test_under_first_the_winner_is_the_earliest(self) -> None:
        assert self.conflicts(saw(1, {"start": "a"}), saw(2, {"start": "b"}, agent="b")) == [("start", "b", "b")]
        assert self.conflicts(saw(1, {"start": "a"}), saw(2, {"start": "b"})) == [("start", "a", "b")]

    def test_map_keys_conflict_one_by_one_and_a_removal_may(self) -> None:
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


class TestMutations:
    def mutations(self, *observations: Observation) -> list[dict[str, Any]]:
        return reference_mutations(EVERYTHING, ENTITY, with_offsets(observations, start=10, gap=2))

    def test_a_scalar_is_set_and_cleared(self) -> None:
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

    def test_a_retraction_brings_back_an_older_holder(self) -> None:
        one, two = saw(1, {"last": 1}), saw(2, {"last": 2})
        retraction = saw(3, retracts=(identify(two),))
        last = self.mutations(one, two, retraction)[-1]
        assert (last["op"], last["old"], last["new"]) == ("set", 2, 1)
        assert (last["observation"], last["by"]) == (identify(one), identify(retraction))

    def test_another_holder_of_an_equal_value_is_none(self) -> None:
        assert len(self.mutations(saw(1, {"last": 1, "tags": ["a"]}), saw(2, {"last": 1, "tags": ["a"]}))) == 2
        assert len(self.mutations(saw(2, {"high": 1}), saw(1, {"high": 1}))) == 1

    def test_a_late_loser_is_none(self) -> None:
        assert [each["version"] for each in self.mutations(saw(2, {"last": 2}), saw(1, {"last": 1}))] == [1]

    def test_sum_and_count_are_held_by_their_cause(self) -> None:
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

    def test_append_names_its_items_by_q_and_place(self) -> None:
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

    def test_what_does_not_fit_is_not_applied(self) -> None:
        added = self.mutations(saw(1, {"attrs": {"a": "x"}}))
        once = apply_mutations(EVERYTHING, {}, added)
        with pytest.raises(AssertionError):
            apply_mutations(EVERYTHING, once, added)


class TestDigests:
    def test_the_state_hash_covers_these_bytes(self) -> None:
        observation = Observation("t/1", 1, patch={"n": 5})
        state = reference_state({"n": FieldSpec("latest")}, "t/1", with_offsets([observation]))
        cbor = (
            bytes.fromhex("a6 62 6279 a1 61 6e 58 20")  # {by: {n: (32 bytes)
            + identify(observation)
            + bytes.fromhex("65 6c696e6b73 80")  # links: []
            + bytes.fromhex("66 656e74697479 63 742f31")  # entity: t/1
            + bytes.fromhex("66 6669656c6473 a1 61 6e 05")  # fields: {n: 5}
            + bytes.fromhex("66 666f726d6174 01")  # format: 1
            + bytes.fromhex("67 76657273696f6e 01")  # version: 1
        )
        assert encode(state) == cbor
        assert reference_hash(state) == hashlib.sha256(cbor).digest()

    @pytest.mark.parametrize(
        ("value", "cbor"),
        [
            (-0.0, "00"),
            (1.0, "01"),
            (-25, "38 18"),
            (1.5, "f9 3e00"),
            (0.1, "fb 3fb999999999999a"),
            (100000.5, "fa 47c35040"),
            (2**64 - 1, "1b ffffffffffffffff"),
            (2**64, "fa 5f800000"),
            (-(2**63), "3b 7fffffffffffffff"),
            (5e-324, "fb 0000000000000001"),
            ([True, None, b"\x01"], "83 f5 f6 41 01"),
        ],
    )
    def test_numbers_are_shortest(self, value: Any, cbor: str) -> None:
        assert encode(value) == bytes.fromhex(cbor)

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2**64 + 1])
    def test_what_is_no_number_is_refused(self, value: Any) -> None:
        with pytest.raises(ValueError, match=r"number|double"):
            encode(value)

    def test_murmur2_agrees_with_kafkas_own_vectors(self) -> None:
        vectors = {
            b"21": -973932308,
            b"foobar": -790332482,
            b"a-little-bit-long-string": -985981536,
            b"a-little-bit-longer-string": -1486304829,
            b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
            b"abc": 479470107,
        }
        assert {key: murmur2(key) for key in vectors} == {key: value % 2**32 for key, value in vectors.items()}

    def test_a_root_of_no_entities_and_of_one(self) -> None:
        empty = bytes(32)
        header = b"refold-root/1"
        assert reference_root({}) == hashlib.sha256(header + bytes(8) + empty * 1024).digest()
        # -790332482 & 0x7fffffff is 1357151166, slot 958; SHA-256 of foobar begins with c3, bucket 195.
        assert reference_slot("foobar") == 958
        bucket = hashlib.sha256(b"\0\0\0\x06foobar" + b"h" * 32).digest()
        slot = hashlib.sha256(empty * 195 + bucket + empty * 60).digest()
        slots = empty * 958 + slot + empty * 65
        root = hashlib.sha256(header + (1).to_bytes(8, "big") + slots).digest()
        assert reference_root({"foobar": b"h" * 32}) == root


class TestLaws:
    @given(histories(), st.randoms(use_true_random=False))
    def test_neither_order_nor_duplicates_matter(self, observations: list[Observation], rng: random.Random) -> None:
        again = [*observations, *rng.sample(observations, len(observations) // 2)]
        rng.shuffle(again)
        states = reference_states(EVERYTHING, with_offsets(observations))
        assert {key: encode(state) for key, state in states.items()} == {
            key: encode(state) for key, state in reference_states(EVERYTHING, with_offsets(again)).items()
        }

    @given(histories(size_max=10))
    def test_mutations_add_up_to_the_state_at_every_version(self, observations: list[Observation]) -> None:
        log = with_offsets(observations)
        for entity in {one.entity for one in observations}:
            replayed: Replayed = {}
            mutations = reference_mutations(EVERYTHING, entity, log)
            for end in range(1, len(log) + 1):
                offset = log[end - 1][0]
                step = [each for each in mutations if each["offset"] == offset]
                replayed = apply_mutations(EVERYTHING, replayed, step)
                if any(one.entity == entity for _, one in log[:end]):
                    state = reference_state(EVERYTHING, entity, log[:end])
                    assert encode(replayed_fields(EVERYTHING, replayed)) == encode(state["fields"])
                    links = [{key: link[key] for key in link if key != "by"} for link in state["links"]]
                    assert encode(replayed_links(replayed)) == encode(links)

    @given(histories())
    def test_without_retractions_true_at_the_end_is_the_state(self, observations: list[Observation]) -> None:
        log = with_offsets([one for one in observations if not one.retracts])
        for entity, state in reference_states(EVERYTHING, log).items():
            assert reference_true_at(EVERYTHING, entity, log, 2**63 - 1) == state


class TestHistories:
    def test_the_test_type_is_a_valid_definition_with_every_reducer(self) -> None:
        fields = EVERYTHING_DEFINITION.fields
        assert {name: field.reducer for name, field in fields.items()} == {
            name: spec.reducer for name, spec in EVERYTHING.items()
        }
        assert fields["log"].limit == EVERYTHING["log"].limit
        assert {field.reducer for field in fields.values()} == set(REDUCERS)

    @given(histories())
    def test_hypothesis_draws_what_the_door_lets_in(self, observations: list[Observation]) -> None:
        for one in observations:
            check_decoded(one, EVERYTHING_DEFINITION)

    def test_seeds_draw_what_the_door_lets_in(self) -> None:
        for seed in range(20):
            for one in random_history(seed, 100):
                check_decoded(one, EVERYTHING_DEFINITION)
                for name, value in one.patch.items():
                    field = EVERYTHING_DEFINITION.fields[name]
                    assert encode(checker(field.node, field.inline_bytes)(value, name, None)) == encode(value)

    def test_a_seed_gives_one_history(self) -> None:
        assert random_history(7, 60) == random_history(7, 60)
        assert random_history(7, 60) != random_history(8, 60)

    def test_seeds_reach_the_hard_cases(self) -> None:
        seen = set()
        for seed in range(40):
            observations = random_history(seed, 120)
            ids = [identify(one) for one in observations]
            first_place: dict[bytes, int] = {}
            for place, identity in enumerate(ids):
                first_place.setdefault(identity, place)
            retracted = {identity for one in observations for identity in one.retracts}
            for place, one in enumerate(observations):
                for target in one.retracts:
                    where = first_place.get(target)
                    order = "unknown" if where is None else "before" if place < where else "after"
                    seen.add(f"retracted {order} it came")
                seen.add("duplicate" if first_place[ids[place]] < place else "new")
                seen.add("retraction retracted" if one.retracts and ids[place] in retracted else "")
                seen.add("correction" if one.retracts and one.patch else "")
                seen.add("clears and asserts" if set(one.cleared) & set(one.patch) else "")
                seen.add(one.kind)
        assert seen >= {
            "retracted unknown it came",
            "retracted before it came",
            "retracted after it came",
            "duplicate",
            "retraction retracted",
            "correction",
            "clears and asserts",
            "link",
            "unlink",
        }
