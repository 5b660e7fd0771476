"""A recording that contains the values that the run read, so that it can be replayed without its log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from refold.agents.journal.record import Attempt, Call, Plain, Recording, Step

Fields = Callable[[str, Plain], Mapping[str, Any]]
"""Looks up the values of a recorded read: (entity, the record of the read) -> its fields."""


def with_values(run: Recording, fields: Fields) -> Recording:
    """Return a self-contained copy of a recording, with its nested runs.

    Args:
        run: The recording.
        fields: Looks up the values of a recorded read.

    Raises:
        NotAnswerable: From `fields`, for a value whose content is gone.
    """

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
