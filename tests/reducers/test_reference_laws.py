"""The laws that the reference holds on any history, and that the histories reach what is hard."""

from __future__ import annotations

import json
import random

from hypothesis import given
from hypothesis import strategies as st

from refold.avro.definition import REDUCERS, parse
from refold.avro.envelope import check_observation
from refold.avro.ids import identify
from refold.avro.observation import Observation
from refold.avro.values import checker
from refold_tests.histories import EVERYTHING, EVERYTHING_AVSC, histories, random_history, with_offsets
from refold_tests.reference import (
    Replayed,
    apply_mutations,
    encode,
    reference_mutations,
    reference_state,
    reference_states,
    reference_true_at,
    replayed_fields,
    replayed_links,
)

EVERYTHING_DEFINITION = parse(
    json.loads(EVERYTHING_AVSC), lambda function: {"name": function, "version": "1", "source": ""}
)


class TestLaws:
    @given(histories(), st.randoms(use_true_random=False))
    def test_order_and_duplicates_do_not_matter(self, observations: list[Observation], rng: random.Random) -> None:
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
    def test_true_at_the_end_without_retractions_is_the_state(self, observations: list[Observation]) -> None:
        log = with_offsets([one for one in observations if not one.retracts])
        for entity, state in reference_states(EVERYTHING, log).items():
            assert reference_true_at(EVERYTHING, entity, log, 2**63 - 1) == state


class TestHistories:
    def test_test_type_is_a_valid_definition_with_every_reducer(self) -> None:
        fields = EVERYTHING_DEFINITION.fields
        assert {name: field.reducer for name, field in fields.items()} == {
            name: spec.reducer for name, spec in EVERYTHING.items()
        }
        assert fields["log"].limit == EVERYTHING["log"].limit
        assert {field.reducer for field in fields.values()} == set(REDUCERS)

    @given(histories())
    def test_hypothesis_draws_only_valid_values(self, observations: list[Observation]) -> None:
        for one in observations:
            check_observation(one, EVERYTHING_DEFINITION)

    def test_seeds_draw_only_valid_values(self) -> None:
        for seed in range(20):
            for one in random_history(seed, 100):
                check_observation(one, EVERYTHING_DEFINITION)
                for name, value in one.patch.items():
                    field = EVERYTHING_DEFINITION.fields[name]
                    assert encode(checker(field.node, field.inline_bytes)(value, name, None)) == encode(value)

    def test_seed_is_deterministic(self) -> None:
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
