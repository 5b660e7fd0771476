"""Which runs are kept longer: the same in every process, no failure is dropped, and as many as configured."""

from __future__ import annotations

import math
import random
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

import refold
from refold.agents.journal.record import Outcome
from refold.agents.sampling import class_of, is_sampled, place_of

SHARES = st.floats(0, 1)
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


@pytest.mark.parametrize(
    ("run_id", "place"),
    [
        ("", 3_010_212_091_015_356_225),
        ("run-1", 7_847_843_937_022_760_780),
        ("3f1c9a", 17_638_488_774_113_949_562),
        ("läufe/7", 6_175_918_664_309_787_093),
    ],
)
def test_sampling_of_a_run_is_deterministic(run_id: str, place: int) -> None:
    assert place_of(run_id) == place


@given(st.text(), SHARES, SHARES)
def test_run_in_a_share_is_in_every_larger_one(run_id: str, a: float, b: float) -> None:
    less, more = sorted((a, b))
    assert is_sampled(run_id, less) <= is_sampled(run_id, more)
    assert not is_sampled(run_id, 0)
    assert is_sampled(run_id, 1)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.999])
def test_sample_has_the_requested_share(share: float, seed: int) -> None:
    draw = random.Random(seed)
    count = 20_000
    kept = sum(is_sampled(f"{draw.getrandbits(128):032x}", share) for _ in range(count))
    # Six standard deviations: once in a thousand million seeds.
    assert abs(kept - share * count) <= 6 * math.sqrt(count * share * (1 - share)), f"REFOLD_SEED={seed}"


@given(st.text(), SHARES, st.sampled_from(OUTCOMES), st.sampled_from(["", "production", "test"]), st.booleans())
def test_failed_and_flagged_runs_are_always_kept(
    run_id: str, share: float, outcome: Outcome, kind: str, is_flagged: bool
) -> None:
    found = class_of(run_id, outcome, kind=kind, is_flagged=is_flagged, share=share)
    if is_flagged:
        assert found == "flagged"
    elif outcome != "succeeded":
        assert found == "failed"
    elif kind == "test":
        assert found == "test"
    else:
        assert found == ("success" if is_sampled(run_id, share) else "unsampled")


def test_all_successes_are_kept_unless_a_share_is_given() -> None:
    assert {class_of(f"run-{number}", "succeeded") for number in range(100)} == {"success"}


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_invalid_share_is_refused(share: float) -> None:
    with pytest.raises(refold.InputError, match="from 0"):
        is_sampled("run-1", share)
