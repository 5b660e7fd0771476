"""Which epochs are kept, checked by each rule separately."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from refold.streams.snapshots.manifest import Epoch
from refold.streams.snapshots.retention_policy import DAY_MS, HOUR_MS, MONTH_MS, EpochAge, kept

BEGIN_MS = 1_700_000_000_000
STEPS_MS = (0, 1, HOUR_MS // 7, HOUR_MS - 1, HOUR_MS, HOUR_MS + 1, DAY_MS // 5, DAY_MS, 3 * DAY_MS, MONTH_MS)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[EpochAge], set[Epoch]]:
    """Epochs over time, and which of them are pinned."""
    rungs: list[EpochAge] = []
    recorded_at, offset, schemas = BEGIN_MS, 0, 1
    for _ in range(draw(st.integers(0, 30))):
        recorded_at += draw(st.sampled_from(STEPS_MS))
        if draw(st.booleans()) or not rungs:
            offset += draw(st.integers(1, 3))
        else:
            schemas += 1
        rungs.append(EpochAge(Epoch(3, offset, schemas), recorded_at, draw(st.booleans())))
    pinned = draw(st.sets(st.sampled_from([each.epoch for each in rungs]), max_size=3)) if rungs else set()
    return rungs, pinned


def reasons(rung: EpochAge, rungs: Sequence[EpochAge], pinned: set[Epoch], now_ms: int) -> set[str]:
    """Why an epoch is kept, by looking at all others for each rule."""
    later = [each for each in rungs if each.epoch > rung.epoch]
    later_bases = [each for each in later if each.is_base]
    age_ms = now_ms - rung.recorded_at
    found = {
        "pinned": rung.epoch in pinned,
        "newest": not later,
        "newest base": rung.is_base and not later_bases,
        "last hour": age_ms <= HOUR_MS,
        "hourly": rung.is_base
        and age_ms <= DAY_MS
        and all(each.recorded_at // HOUR_MS > rung.recorded_at // HOUR_MS for each in later_bases),
        "daily": rung.is_base
        and age_ms <= MONTH_MS
        and all(each.recorded_at // DAY_MS > rung.recorded_at // DAY_MS for each in later_bases),
    }
    return {name for name, holds in found.items() if holds}


@given(histories(), st.sampled_from(STEPS_MS), st.randoms(use_true_random=False))
def test_kept_epochs_follow_the_rules(
    history: tuple[list[EpochAge], set[Epoch]], later_ms: int, rng: random.Random
) -> None:
    rungs, pinned = history
    now_ms = (rungs[-1].recorded_at if rungs else BEGIN_MS) + later_ms
    expected = {rung.epoch for rung in rungs if reasons(rung, rungs, pinned, now_ms)}
    assert kept(rng.sample(rungs, len(rungs)), pinned, now_ms) == expected


@given(histories(), st.lists(st.sampled_from(STEPS_MS), min_size=1, max_size=12))
def test_kept_epochs_do_not_depend_on_earlier_collections(
    history: tuple[list[EpochAge], set[Epoch]], times: list[int]
) -> None:
    rungs, pinned = history
    now_ms = rungs[0].recorded_at if rungs else BEGIN_MS
    left: list[EpochAge] = []
    coming = list(rungs)
    for later_ms in times:
        now_ms += later_ms
        while coming and coming[0].recorded_at <= now_ms:
            left.append(coming.pop(0))
        stay = kept(left, pinned, now_ms)
        left = [rung for rung in left if rung.epoch in stay]
    assert {rung.epoch for rung in left} == kept([each for each in rungs if each not in coming], pinned, now_ms)


def test_two_months_of_epochs_a_minute_leave_a_bounded_number() -> None:
    minute_ms = 60_000
    rungs = [EpochAge(Epoch(0, at + 1, 1), BEGIN_MS + at * minute_ms, at % 5 == 0) for at in range(60 * 24 * 60)]
    stay = kept(rungs, set(), rungs[-1].recorded_at)
    assert len(stay) <= 61 + 24 + 31
    assert min(stay).offset > 28 * 24 * 60


def test_no_epochs_keep_none() -> None:
    assert kept([], set(), BEGIN_MS) == set()
