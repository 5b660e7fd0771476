"""Who owns an agent: the log's order decides, and every reader decides alike."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from refold.agents.supervise.lease import AgentRecord
from refold.avro.observation import Observation, Source


class Story:
    """Records of one agent, each with an id of its own."""

    def __init__(self) -> None:
        self.written: list[tuple[Observation, bytes]] = []

    def say(self, patch: dict[str, Any], by: str = "", priority: int = 0, at: int = 0) -> None:
        observation = Observation("agent/a", at, source=Source("s", by), patch=patch, priority=priority)
        self.written.append((observation, len(self.written).to_bytes(32, "big")))

    def act(self, token: str, act: str, beat: int, after: str | None = None) -> None:
        lease: dict[str, Any] = {"token": token, "act": act, "beat": beat, "after": after}
        self.say({"lease": lease, "lease_ms": 30, "owner": f"owner of {token}"}, token)

    def read(self, until: int | None = None) -> AgentRecord:
        record = AgentRecord()
        for observation, identity in self.written[:until]:
            record.apply(observation, identity)
        return record


def holder(record: AgentRecord) -> tuple[str, int, bool, int]:
    return record.token, record.beat, record.is_open, record.term


def test_first_claim_is_granted_and_the_second_denied_permanently() -> None:
    story = Story()
    story.act("a", "claimed", 0)
    story.act("b", "claimed", 0)
    assert holder(story.read()) == ("a", 0, True, 1)
    assert story.read().owner == "owner of a"
    story.act("a", "released", 1)
    story.written.append(story.written[1])  # a repeat of the denied request
    assert holder(story.read()) == ("a", 1, False, 1)
    story.act("c", "claimed", 1, "a")
    assert holder(story.read()) == ("c", 0, True, 2)


def test_renewal_before_a_takeover_denies_it() -> None:
    story = Story()
    story.act("a", "claimed", 0)
    story.act("a", "renewed", 1)
    story.act("b", "claimed", 0, "a")
    assert holder(story.read()) == ("a", 1, True, 1)


def test_renewal_after_a_takeover_has_no_effect() -> None:
    story = Story()
    story.act("a", "claimed", 0)
    story.act("b", "claimed", 0, "a")
    story.act("a", "renewed", 1)
    story.act("a", "released", 2)
    assert holder(story.read()) == ("b", 0, True, 2)


def test_only_the_last_claim_says_what_the_agent_does() -> None:
    story = Story()
    story.act("a", "claimed", 0)
    story.say({"status": "running", "attempt": 1}, "a", 1)
    story.act("b", "claimed", 0, "a")
    story.say({"status": "stopped", "attempt": 1}, "a", 1)
    assert story.read().observed.status == "running"
    story.say({"status": "unknown", "attempt": 1}, "b", 2)
    assert story.read().observed.status == "unknown"


def test_request_with_the_highest_number_wins() -> None:
    story = Story()
    story.say({"desired": "running", "desired_by": "ann", "desired_at": 9}, "x", 1, at=500)
    story.say({"desired": "paused", "desired_by": "bob"}, "y", 2, at=100)  # his clock is behind
    assert story.read().desired[:3] == ("paused", 2, "bob")
    story.say({"desired": "stopped"}, "z", 2, at=50)
    assert story.read().desired.what == "paused"


ACTS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from(["claimed", "renewed", "released"]), st.integers(0, 9)),
    max_size=40,
)


@example([("a", "claimed", 0), ("a", "renewed", 0), ("a", "claimed", 0), ("a", "renewed", 1), ("a", "renewed", 0)])
@given(ACTS)
@settings(max_examples=300)
def test_whatever_supervisors_do_the_acts_that_count_are_a_chain(acts: list[tuple[str, str, int]]) -> None:
    """Each supervisor read the log up to some earlier point, and acts by what it saw there.

    An owner has read its own claim: by that it knows that it is the owner.
    """
    story = Story()
    granted: dict[str, int] = {}  # the claims, with the length of the log after each
    for number, (who, act, behind) in enumerate(acts):
        mine = [each for each in granted if each.startswith(who)]
        least = granted[mine[-1]] if mine and act != "claimed" else 0
        seen = story.read(max(least, len(story.written) - behind))
        before = story.read()
        if act == "claimed":
            story.act(f"{who}{number}", "claimed", seen.beat, seen.token or None)
        elif mine:
            story.act(mine[-1], act, seen.beat + 1)
        else:
            continue
        after = story.read()
        if after.token != before.token:
            # It was granted: its author had seen everything about ownership up to here.
            assert (after.token, after.term) == (f"{who}{number}", before.term + 1)
            assert (seen.token, seen.beat) == (before.token, before.beat)
            granted[after.token] = len(story.written)
        elif holder(after) != holder(before):
            assert before.is_open
            assert mine[-1] == before.token
            assert after.beat == before.beat + 1
    assert len(granted) == story.read().term
    record = story.read()
    for observation, identity in story.written:
        record.apply(observation, identity)
    assert holder(record) == holder(story.read()), "repeats count for nothing"


SAYINGS = st.one_of(
    st.tuples(st.sampled_from("ab"), st.sampled_from(["claimed", "renewed", "released"])),
    st.tuples(st.sampled_from("ab"), st.sampled_from(["running", "paused"])),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
)


@given(st.lists(SAYINGS, min_size=1, max_size=20), st.integers(0, 20))
@settings(max_examples=200)
def test_reader_from_a_checkpoint_knows_what_a_reader_of_everything_knows(sayings: list[Any], until: int) -> None:
    story = Story()
    for number, (one, other) in enumerate(sayings):
        seen = story.read()
        if isinstance(one, int):
            story.say({"desired": "stopped" if number % 2 else "running", "desired_by": "ann"}, "x", one, at=other)
        elif other in ("running", "paused"):
            story.say({"status": other, "attempt": number, "why": "so"}, seen.token if one == "a" else "old", seen.term)
        elif other == "claimed":
            story.act(f"{one}{number}", other, seen.beat, seen.token or None)
        else:
            story.act(seen.token, other, seen.beat + 1)
    until = min(until, len(sayings))
    known = AgentRecord.from_checkpoint(json.loads(json.dumps(story.read(until).checkpoint())))
    assert known is not None
    for observation, identity in story.written[until:]:
        known.apply(observation, identity)
    whole = story.read()
    assert known.checkpoint() == whole.checkpoint()


def test_checkpoint_of_other_rules_is_ignored() -> None:
    assert AgentRecord.from_checkpoint({**AgentRecord().checkpoint(), "rules": 0}) is None
