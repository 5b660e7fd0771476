"""Who holds a claim: compared with a naive reading of the rule, for any order of possible records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from refold.agents.effects.claims import EffectState

Said = tuple[str, str]
SAID = st.sampled_from(["intended", "intended", "done", "failed", "released", "unknown"])
HISTORIES = st.lists(st.tuples(st.sampled_from(["r:a", "r:b", "s:a", "s:b", "t:a"]), SAID), max_size=14)


def standing_of(history: Sequence[Said]) -> EffectState:
    standing = EffectState()
    for number, (token, said) in enumerate(history):
        patch: dict[str, Any] = {"claims": {token: said}}
        if said == "done":
            patch["result"] = f"{number}"
        standing.apply(patch)
    return standing


def is_granted(history: Sequence[Said], place: int) -> bool:
    """Decide only by the records before this one: nothing is done, the token is new, and no claim is open."""
    token, said = history[place]
    before = history[:place]
    return (
        said == "intended"
        and all(each != token for each, _ in before)
        and all(what != "done" for _, what in before)
        and not any(is_granted(history, each) and is_open(history, each, place) for each in range(place))
    )


def is_open(history: Sequence[Said], place: int, end: int) -> bool:
    token = history[place][0]
    return not any(each == token and what in ("failed", "released", "done") for each, what in history[place:end])


@given(HISTORIES)
def test_holder_is_the_lowest_open_intent(history: list[Said]) -> None:
    standing = standing_of(history)
    done = [number for number, (_, said) in enumerate(history) if said == "done"]
    granted = [each for each in range(len(history)) if is_granted(history, each)]
    holders = [history[each][0] for each in granted if is_open(history, each, len(history))] if not done else []
    assert len(holders) <= 1
    assert [standing.holder.token] == holders if standing.holder else not holders
    if done:
        assert standing.done is not None
        assert (standing.status, standing.done.result) == ("done", f"{done[0]}")
    elif holders:
        assert standing.holder is not None
        place = next(each for each in granted if history[each][0] == holders[0])
        assert standing.holder.is_unknown == ((holders[0], "unknown") in history[place:])


@given(HISTORIES)
def test_denied_claim_is_never_granted_later(history: list[Said]) -> None:
    denied: set[str] = set()
    for end in range(len(history) + 1):
        holder = standing_of(history[:end]).holder
        assert holder is None or holder.token not in denied
        denied |= {token for token, _ in history[:end] if holder is None or token != holder.token}


def test_attempts_count_grants_and_a_person_allows_new_ones() -> None:
    standing = standing_of([("r:1", "intended"), ("r:2", "intended"), ("r:1", "failed"), ("r:2", "released")])
    assert (standing.attempts, standing.failures, standing.status) == (1, 1, "failed")
    standing.apply({"claims": {"r:3": "intended"}})
    standing.apply({"claims": {"r:3": "released"}})
    assert (standing.attempts, standing.failures, standing.status) == (1, 1, "failed")
    standing.apply({"claims": {"r:4": "intended"}})
    standing.apply({"claims": {"r:4": "failed"}, "reconciled_by": "probe"})
    assert (standing.attempts, standing.failures) == (2, 2)
    standing.apply({"claims": {"r:1": "failed"}, "reconciled_by": "ann"})
    assert standing.failures == 2, "only of the claim that failed last"
    standing.apply({"claims": {"r:4": "failed"}, "reconciled_by": "ann"})
    assert (standing.attempts, standing.failures) == (2, 0)
    assert standing.failed is not None
    assert standing.failed.is_retryable
