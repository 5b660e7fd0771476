"""A recording with the values of what was read in it, so that it can be replayed where its log is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from refold.agents.journal.record import Attempt, Call, Plain, Recording, Step

Fields = Callable[[str, Plain], Mapping[str, Any]]
"""The values behind a recorded read: (entity, what is recorded of the read) -> its fields."""


def with_values(run: Recording, fields: Fields) -> Recording:
    """The recording and those within it, standing alone. What `fields` raises where content is gone comes through."""

    def call(each: Call) -> Call:
        answer = each.answer
        if each.asked.kind != "read" or not isinstance(answer, dict) or "fields" in answer:
            return each
        return msgspec.structs.replace(each, answer={**answer, "fields": dict(fields(each.asked.name, answer))})

    def attempt(each: Attempt) -> Attempt:
        return msgspec.structs.replace(each, calls=tuple(map(call, each.calls)))

    def step(each: Step) -> Step:
        return msgspec.structs.replace(each, attempts=tuple(map(attempt, each.attempts)))

    children = {name: with_values(each, fields) for name, each in run.children.items()}
    return msgspec.structs.replace(run, steps=tuple(map(step, run.steps)), children=children)
