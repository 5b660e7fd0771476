"""Idempotency keys."""

from __future__ import annotations

import hashlib

import pytest

from refold.agents.effects.keys import StepKeys, effect_key, entity_of, undo_key
from refold.avro.errors import ValidationError


def test_key_covers_task_step_tool_and_arguments() -> None:
    arguments = {"kwargs": {"b": [1, {"y": 2, "x": 1}], "a": "é"}}
    digest = hashlib.sha256('{"kwargs":{"a":"é","b":[1,{"x":1,"y":2}]}}'.encode()).hexdigest()
    assert effect_key("order-7", 3, "refund", arguments) == f"order-7:3:refund:{digest}"
    assert effect_key("order-7", 3, "refund", {"kwargs": {"a": "é", "b": [1, {"x": 1, "y": 2}]}}).endswith(digest)
    assert entity_of("k") == "effect/k"
    assert undo_key("k") == "k:undo"


def test_keys_of_different_effects_differ() -> None:
    keys = {
        effect_key(task, step, tool, arguments, ordinal)
        for task in ("a", "b", "a:1", "a%3A1", "a%253A1")
        for step in (1, 11)
        for tool in ("t", "1:t", "u")
        for arguments in ({}, {"a": 1}, {"a": "1"}, {"a": True}, [1], [[1]], None)
        for ordinal in (1, 2)
    }
    assert len(keys) == 5 * 2 * 3 * 7 * 2


def test_equal_calls_in_a_step_are_distinct_and_each_attempt_restarts_the_count() -> None:
    def attempt() -> list[str]:
        keys = StepKeys("t", 1)
        return [keys.next(tool, {"a": a}) for tool, a in (("x", 1), ("y", 1), ("x", 1), ("x", 2), ("x", 1))]

    first = attempt()
    assert len(set(first)) == 5
    assert [first[0] + ".2", first[0] + ".3"] == [first[2], first[4]]
    assert attempt() == first
    assert StepKeys("t", 2).next("x", {"a": 1}) not in first


@pytest.mark.parametrize(
    ("task", "arguments"), [("t" * 1000, {}), ("t\n", {}), ("t", {"a": float("nan")}), ("t", {"a": {1}})]
)
def test_unusable_key_parts_are_refused(task: str, arguments: object) -> None:
    with pytest.raises(ValidationError):
        effect_key(task, 1, "x", arguments)
