"""Damaged inputs for the kernel, in their short form; `make fuzz` drives a million."""

from __future__ import annotations

from refold_tests.fuzz.kernel import run


def test_damaged_inputs_are_read_and_folded_as_by_python(seed: int, is_soak: bool) -> None:
    print(f"seed {seed}")
    found = run(seed, 200_000 if is_soak else 4_000)
    assert all(found[what] for what in ("read", "folded onto a damaged state", "damaged ones folded"))
