"""What the fold tells of its latest records: all that is asked for, or nothing."""

from __future__ import annotations

import random

import pytest

from refold.streams.snapshots import touched
from refold.streams.snapshots.touched import Touched


def test_all_names_of_a_range_are_given_or_none(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(touched, "NAMES_MAX", 60)
    rng = random.Random(seed)
    told, names, begun, sealed = Touched(), [f"t/{rng.randrange(30)}" for _ in range(2_000)], 0, 0
    given = 0
    at = 0
    while at < len(names):
        end = min(at + rng.randint(1, 20), len(names))
        if rng.random() < 0.02:  # another process folded these
            begun = end
        else:
            told.tell(at, end, names[at:end])
        at = end
        if rng.random() < 0.3:
            found = told.between(sealed, at)
            if found is not None:
                given += 1
                assert sealed >= begun
                assert set(names[sealed:at]) <= found <= set(names[max(0, sealed - 20) : at])
            assert told.between(sealed, at + 1) is None
            sealed = at
    assert given


def test_only_so_many_names_are_kept() -> None:
    told = Touched()
    for number in range(5):
        told.tell(number, number + 1, ["t/x"] * touched.NAMES_MAX)
    assert told.between(0, 5) is None
    assert told.between(4, 5) == {"t/x"}
    assert told.between(5, 5) is None
