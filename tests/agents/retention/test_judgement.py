"""Which runs are kept, and why: decided only by their fields."""

from __future__ import annotations

from typing import Any

import pytest

from refold.agents.retention.classes import DAY_MICROS, DAYS, class_of, days_of
from refold.agents.retention.plan import ContentUse, judged
from refold.avro.errors import InputError

NOW = 1_800_000_000_000_000


def ended(days_ago: float, **fields: Any) -> dict[str, Any]:
    return {"status": "ended", "ended_at": NOW - round(days_ago * DAY_MICROS), "outcome": "succeeded", **fields}


def kept_by_run(**runs: dict[str, Any]) -> dict[str, list[str]]:
    return {name: each.kept for name, each in judged(runs, ContentUse(), days_of(["vip=400"]), NOW).items()}


def test_each_class_has_its_days() -> None:
    found = kept_by_run(
        a=ended(6.99), b=ended(7), c=ended(29, outcome="failed"), d=ended(30, outcome="timed_out"),
        e=ended(0.9, kind="test"), f=ended(1.1, retention_class="test"), g=ended(399, retention_class="vip"),
        h=ended(9999, retention_class="mine"), i=ended(29, outcome="unknown"), j=ended(8, retention_class="failed"),
    )  # fmt: skip
    assert found == {
        "a": ["class success for 7 days"], "b": [], "c": ["class failed for 30 days"], "d": [],
        "e": ["class test for 1 day"], "f": [], "g": ["class vip for 400 days"], "h": ["class mine"],
        "i": ["class failed for 30 days"], "j": ["class failed for 30 days"],
    }  # fmt: skip


def test_open_pinned_golden_and_flagged_runs_are_kept() -> None:
    old: dict[str, Any] = {"status": "running", "started_at": 1}
    assert kept_by_run(
        a=old, b={**ended(99), "status": "running"}, c=ended(99, pinned=True), d=ended(99, golden="g"),
        e=ended(89, flagged=True), f=ended(91, flagged=True), g=ended(399, flagged=True, retention_class="vip"),
        h=ended(99, pinned=False, flagged=False, golden=""),
    ) == {
        "a": ["open"], "b": ["open"], "c": ["pinned"], "d": ["golden"], "e": ["class flagged for 90 days"], "f": [],
        "g": ["class vip for 400 days"], "h": [],
    }  # fmt: skip


def test_kept_fork_keeps_its_ancestors() -> None:
    found = kept_by_run(
        root=ended(99), middle=ended(99, parent_run="root"), leaf=ended(1, parent_run="middle"),
        old=ended(99, parent_run="root"), alone=ended(99, parent_run="elsewhere"), loop=ended(99, parent_run="loop"),
        both=ended(99, parent_run="root", pinned=True),
    )  # fmt: skip
    assert found["root"] == ["parent of both", "parent of middle"]
    assert found["middle"] == ["parent of leaf"]
    assert [found[each] for each in ("old", "alone", "loop")] == [[], [], []]


def test_kept_run_keeps_its_child_runs() -> None:
    found = kept_by_run(
        outer=ended(1), child=ended(99, caller_run="outer"), grandchild=ended(99, caller_run="child"),
        old=ended(99), of_old=ended(99, caller_run="old"), lost=ended(99, caller_run="elsewhere"),
        kept_child=ended(1, caller_run="old"), loop=ended(99, caller_run="loop"),
        root=ended(99), of_root=ended(99, caller_run="root"), fork=ended(1, parent_run="root"),
    )  # fmt: skip
    assert [found[each] for each in ("child", "grandchild", "of_root")] == [
        ["within outer"], ["within child"], ["within root"],
    ]  # fmt: skip
    assert [found[each] for each in ("old", "of_old", "lost", "loop")] == [[], [], [], []]


def test_imported_run_ages_from_its_import() -> None:
    seen = ContentUse(ended_ms={"a": (NOW - DAY_MICROS) // 1000})
    found = judged({"a": ended(500)}, seen, DAYS, NOW)["a"]
    assert found.kept == ["class success for 7 days"]
    assert found.due_at == NOW + 6 * DAY_MICROS


def test_days_are_given_by_class() -> None:
    assert days_of(["success=0", "mine=1.5"]) == {**DAYS, "success": 0, "mine": 1.5}
    for odd in ("success", "=3", "success=", "success=-1", "a b=3", "x=1e3"):
        with pytest.raises(InputError, match="such as failed=60"):
            days_of([odd])
    assert class_of({}) == "failed"
