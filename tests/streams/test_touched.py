"""What the fold tells of its latest records: all that is asked for, or nothing."""

from __future__ import annotations

import random

import pytest

from refold.streams.snapshots import touched
from refold.streams.snapshots.touched import Touched

STATE_BYTES = 8


def test_all_of_a_range_is_given_or_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entity as the last of its records left it, or without its state."""
    monkeypatch.setattr(touched, "NAMES_MAX", 60)
    rng = random.Random(seed)
    told, begun, sealed, at = Touched(40 * STATE_BYTES), 0, 0, 0
    every = [(f"t/{rng.randrange(30)}", rng.randbytes(STATE_BYTES)) for _ in range(2_000)]
    met = {"whole": 0, "in part": 0}
    while at < len(every):
        end = min(at + rng.randint(1, 20), len(every))
        if rng.random() < 0.02:  # another process folded these
            begun = end
        else:
            told.tell(at, end, every[at:end])
        at = end
        if rng.random() < 0.3:
            found = told.between(sealed, at)
            if found is not None:
                assert sealed >= begun
                expected = dict(every[sealed:at])
                assert expected.keys() <= found.keys() <= dict(every[max(0, sealed - 20) : at]).keys()
                assert all(found[name] in {state, b""} for name, state in expected.items())
                met["whole" if all(found.values()) else "in part"] += 1
            assert told.between(sealed, at + 1) is None
            sealed = at
    assert all(met.values())


def test_what_is_told_later_is_not_of_the_moment() -> None:
    told = Touched(1_000)
    told.tell(0, 2, [("t/x", b"first")])
    told.tell(2, 3, [("t/x", b"later"), ("t/y", b"new")])
    assert told.between(0, 2) == {"t/x": b"first"}
    assert told.between(0, 3) == {"t/x": b"later", "t/y": b"new"}
    assert told.between(2, 3) == {"t/x": b"later", "t/y": b"new"}


def test_it_presses_when_states_would_be_let_go_before_they_are_asked_for() -> None:
    told = Touched(100)
    for number in range(8):
        assert not told.is_pressing
        told.tell(number, number + 1, [(f"t/{number}", bytes(10))])
    assert told.is_pressing
    assert all((told.between(0, 7) or {"": b""}).values()), "none is gone yet"
    assert not told.is_pressing
    for number in range(8, 14):
        told.tell(number, number + 1, [(f"t/{number}", bytes(10))])
        assert not told.is_pressing
    told.tell(14, 15, [("t/14", bytes(10))])
    assert told.is_pressing
    assert all((told.between(7, 15) or {"": b""}).values()), "those asked for before were let go first"


def test_what_is_let_go_because_records_are_missing_does_not_press() -> None:
    told = Touched(100)
    told.tell(0, 1, [("t/x", bytes(80))])
    told.tell(5, 6, [("t/y", bytes(10))])
    assert not told.is_pressing


def test_only_so_much_is_kept() -> None:
    told = Touched(10)
    for number in range(5):
        told.tell(number, number + 1, [("t/x", b"s")] * touched.NAMES_MAX)
    assert told.between(0, 5) is None
    assert told.between(4, 5) == {"t/x": b""}
    assert told.between(5, 5) is None
    told.tell(5, 6, [("t/x", b"s")])
    assert told.between(5, 6) == {"t/x": b"s"}
