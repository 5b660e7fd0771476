"""The reference fold itself, on examples worked out by hand: one for each rule it is trusted with."""

from __future__ import annotations

from typing import Any

import pytest

from refold.avro.ids import identify
from refold.avro.observation import Link
from refold_tests.examples import ENTITY, fields_of, linked, saw, state_of
from refold_tests.histories import EVERYTHING, with_offsets
from refold_tests.reference import FieldSpec, exact_sum, reference_state, reference_states, reference_true_at

DOUBLE_MAX = 1.7976931348623157e308


class TestOrder:
    def test_latest_is_ordered_by_observed_at_not_by_arrival(self) -> None:
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
    def test_agent_then_run_then_seq_decide_at_equal_times(self, less: Any, greater: Any) -> None:
        assert fields_of(saw(1, {"last": 2}, **greater), saw(1, {"last": 1}, **less)) == {"last": 2}

    def test_id_decides_last(self) -> None:
        one, other = saw(1, {"last": 1}), saw(1, {"last": 2})
        greater = max(one, other, key=identify)
        assert state_of(one, other)["by"] == {"last": identify(greater)}


class TestReducers:
    def test_latest_takes_the_greatest_priority_then_the_greatest_q(self) -> None:
        assert fields_of(saw(1, {"last": 1}, priority=1), saw(9, {"last": 9})) == {"last": 1}

    def test_first_takes_the_least_q_within_the_greatest_priority(self) -> None:
        base = (saw(1, {"start": "a"}), saw(2, {"start": "b"}))
        assert fields_of(*base) == {"start": "a"}
        assert fields_of(*base, saw(8, {"start": "x"}, priority=1), saw(7, {"start": "y"}, priority=1)) == {
            "start": "y"
        }

    def test_min_and_max_ignore_priority_and_the_least_q_holds_ties(self) -> None:
        early, late = saw(1, {"low": -3, "high": 5}), saw(2, {"low": -3, "high": 5}, priority=7)
        state = state_of(late, early, saw(0, {"low": 0.5, "high": 4}, priority=9))
        assert state["fields"] == {"low": -3, "high": 5}
        assert state["by"] == {"low": identify(early), "high": identify(early)}

    def test_sum_and_count_cover_live_assertions_and_by_is_their_number(self) -> None:
        state = state_of(saw(1, {"total": 1, "hits": 7}), saw(2, {"total": 0.5}), saw(3, {"hits": 7}))
        assert state["fields"] == {"total": 1.5, "hits": 2}
        assert state["by"] == {"total": 2, "hits": 2}

    def test_sum_of_zero_is_present(self) -> None:
        assert fields_of(saw(1, {"total": 0.1}), saw(2, {"total": -0.1})) == {"total": 0}

    def test_union_is_ordered_by_cbor_and_the_least_q_holds_an_element(self) -> None:
        late, early = saw(2, {"tags": ["b", "aa", "b"]}, priority=1), saw(1, {"tags": ["b"]})
        state = state_of(late, early)
        assert state["fields"] == {"tags": ["b", "aa"]}  # a shorter text has the lesser head byte
        assert state["by"] == {"tags": [identify(early), identify(late)]}

    def test_append_keeps_the_last_items_by_q_and_index(self) -> None:
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

    def test_winning_null_removes_its_key_and_lower_priority_values(self) -> None:
        assert fields_of(saw(1, {"attrs": {"a": "x"}}), saw(2, {"attrs": {"a": None}})) == {}
        removed = saw(1, {"attrs": {"a": None}}, priority=1)
        assert fields_of(removed, saw(2, {"attrs": {"a": "x", "b": "x"}})) == {"attrs": {"b": "x"}}

    def test_custom_folds_in_q_order_and_its_last_assertion_is_the_holder(self) -> None:
        third, first, second = saw(3, {"folded": 4}), saw(1, {"folded": 1}), saw(2, {"folded": 2}, priority=9)
        state = state_of(third, first, second)
        assert state["fields"] == {"folded": (1 * 3 + 2) * 3 + 4}
        assert state["by"] == {"folded": identify(third)}

    def test_custom_may_read_the_envelope_and_leave_the_field_absent(self) -> None:
        def heaviest(value: Any, assertion: Any) -> Any:
            return max(value or 0, assertion.priority * assertion.observed_at) or None

        definition = {"best": FieldSpec("custom", function=heaviest)}
        log = with_offsets([saw(5, {"best": 0}, priority=2)])
        assert reference_state(definition, ENTITY, log)["fields"] == {"best": 10}
        assert reference_state(definition, ENTITY, with_offsets([saw(5, {"best": 0})]))["fields"] == {}

    def test_empty_collection_is_absent(self) -> None:
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
def test_sum_is_exact_and_rounded_once(values: tuple[int | float, ...], expected: int | float) -> None:
    for order in (values, values[::-1]):
        total = exact_sum(order)
        assert (total, type(total)) == (expected, type(expected))


class TestClears:
    def test_clear_hides_lower_q_whatever_the_priority(self) -> None:
        clear = saw(5, cleared=("last",))
        assert fields_of(saw(4, {"last": 4}, priority=9), clear) == {}
        assert fields_of(saw(4, {"last": 4}, priority=9), clear, saw(6, {"last": 6}, priority=-1)) == {"last": 6}

    def test_clear_may_precede_what_it_hides_in_the_log(self) -> None:
        assert fields_of(saw(5, cleared=("total",)), saw(4, {"total": 4}), saw(6, {"total": 6})) == {"total": 6}

    @pytest.mark.parametrize("field", list(EVERYTHING))
    def test_every_reducer_is_cleared(self, field: str) -> None:
        patch = {"start": "a", "tags": ["a"], "log": [1], "attrs": {"a": "x"}}
        assertion = saw(1, {field: patch.get(field, 1)}, priority=1)
        assert field in fields_of(assertion)
        assert fields_of(assertion, saw(2, cleared=(field,))) == {}

    def test_observation_may_clear_and_assert_the_same_field(self) -> None:
        assert fields_of(saw(1, {"tags": ["a"]}), saw(2, {"tags": ["b"]}, cleared=("tags",))) == {"tags": ["b"]}

    def test_simultaneous_clear_is_ordered_by_the_rest_of_q(self) -> None:
        below, above = saw(1, {"tags": ["below"]}, seq=0), saw(1, {"tags": ["above"]}, seq=2)
        assert fields_of(below, above, saw(1, cleared=("tags",), seq=1)) == {"tags": ["above"]}

    def test_retracted_clear_hides_nothing(self) -> None:
        clear = saw(5, cleared=("last",))
        assert fields_of(saw(4, {"last": 4}), clear, saw(6, retracts=(identify(clear),))) == {"last": 4}


class TestRetractions:
    def test_retraction_may_precede_or_follow_its_target(self) -> None:
        target, kept = saw(2, {"last": 2}), saw(1, {"last": 1})
        retraction = saw(0, retracts=(identify(target),))
        for log in ((target, kept, retraction), (retraction, kept, target)):
            state = state_of(*log)
            assert (state["fields"], state["version"]) == ({"last": 1}, 3)

    def test_correction_retracts_and_asserts(self) -> None:
        wrong = saw(1, {"total": 10})
        state = state_of(saw(0, {"total": 1}), wrong, saw(1, {"total": 5}, retracts=(identify(wrong),), seq=1))
        assert (state["fields"], state["by"]) == ({"total": 6}, {"total": 2})

    def test_retraction_by_a_retracted_observation_stays_in_force(self) -> None:
        target = saw(1, {"last": 1})
        correction = saw(2, {"last": 2}, retracts=(identify(target),))
        state = state_of(target, correction, saw(3, retracts=(identify(correction),)))
        assert (state["fields"], state["by"], state["version"]) == ({}, {}, 3)

    def test_retraction_acts_on_its_own_entity_only(self) -> None:
        target = saw(1, {"last": 1})
        elsewhere = saw(2, entity="everything/2", retracts=(identify(target),))
        assert fields_of(target, elsewhere) == {"last": 1}

    def test_unknown_id_is_ignored(self) -> None:
        assert fields_of(saw(1, {"last": 1}), saw(2, retracts=(bytes(32),))) == {"last": 1}

    def test_link_is_retracted_like_an_assertion(self) -> None:
        link, unlink = linked("link", 1), linked("unlink", 2)
        assert state_of(link, unlink, saw(3, retracts=(identify(unlink),)))["links"][0]["by"] == identify(link)


class TestVersionsAndPresence:
    def test_duplicate_changes_nothing(self) -> None:
        once = saw(1, {"total": 1, "log": [1]})
        assert state_of(once, once, once) == state_of(once)
        assert state_of(once)["version"] == 1

    def test_entity_of_retracted_observations_exists_and_is_empty(self) -> None:
        target = saw(1, {"last": 1})
        assert state_of(target, saw(2, retracts=(identify(target),))) == {
            "format": 1,
            "entity": ENTITY,
            "version": 2,
            "fields": {},
            "by": {},
            "links": [],
        }

    def test_entity_that_is_only_referenced_does_not_exist(self) -> None:
        with pytest.raises(LookupError):
            state_of(saw(1, entity="everything/2"))
        link = saw(1, kind="link", link=Link("about", "document/x"))
        assert list(reference_states(EVERYTHING, with_offsets([link]))) == [ENTITY]


class TestLinks:
    def test_greatest_priority_then_q_wins_with_its_validity(self) -> None:
        winner = linked("link", 1, priority=1, valid_from=0)
        assert state_of(linked("link", 2, valid_to=5), winner)["links"] == [
            {"relation": "about", "target": "document/x", "by": identify(winner), "valid_from": 0}
        ]

    def test_unlink_of_lower_priority_does_not_unlink(self) -> None:
        assert len(state_of(linked("link", 1, priority=1), linked("unlink", 2))["links"]) == 1
        assert state_of(linked("link", 1), linked("unlink", 2))["links"] == []
        assert state_of(linked("unlink", 1, priority=1), linked("link", 2))["links"] == []

    def test_links_are_ordered_by_the_cbor_of_relation_and_target(self) -> None:
        pairs = [("bb", "x"), ("a", "zz"), ("a", "yyy"), ("a", "z")]
        log = [saw(1, kind="link", link=Link(*pair), seq=seq) for seq, pair in enumerate(pairs)]
        ordered = [(link["relation"], link["target"]) for link in state_of(*log)["links"]]
        assert ordered == [("a", "z"), ("a", "zz"), ("a", "yyy"), ("bb", "x")]


class TestTrueAt:
    def test_true_at_takes_what_was_observed_by_then(self) -> None:
        log = with_offsets([saw(3, {"last": 3}), saw(1, {"last": 1}), saw(2, {"last": 2})])
        state = reference_true_at(EVERYTHING, ENTITY, log, 2)
        assert state is not None
        assert (state["fields"], state["version"]) == ({"last": 2}, 2)
        assert reference_true_at(EVERYTHING, ENTITY, log, 0) is None

    def test_later_retraction_applies_to_all_times(self) -> None:
        wrong, kept = saw(2, {"last": 2}), saw(1, {"last": 1})
        log = with_offsets([wrong, kept, saw(9, {"last": 9}, retracts=(identify(wrong),))])
        state = reference_true_at(EVERYTHING, ENTITY, log, 2)
        assert state is not None
        assert (state["fields"], state["version"]) == ({"last": 1}, 1)

    def test_later_clear_does_not(self) -> None:
        state = reference_true_at(EVERYTHING, ENTITY, with_offsets([saw(1, {"last": 1}), saw(9, cleared=("last",))]), 2)
        assert state is not None
        assert state["fields"] == {"last": 1}
