"""Which tool result answers which call.

Providers repeat call ids within one conversation, results come in any order, and older formats have no ids.
So a result answers an open call, of the newest step that has a fitting one: with the same id where the result
has one, else with the same tool name, else the first open. Each call is answered once. A result that fits
none is an orphan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from refold.agents.importers.messages import Call, Message

Place: TypeAlias = tuple[int, int]
"""A call: number of its step among the assistant messages and its place in the step, both from 1."""


def answers(messages: Sequence[Message]) -> dict[int, Place]:
    """The call that each tool result answers, by the result's index in `messages`; orphans are not in it."""
    steps: list[dict[int, Call]] = []
    found: dict[int, Place] = {}
    for index, message in enumerate(messages):
        if message.role == "assistant":
            steps.append(dict(enumerate(message.calls, start=1)))
        elif message.is_result:
            place = _open_call(steps, message)
            if place is not None:
                found[index] = place
                del steps[place[0] - 1][place[1]]
    return found


def _open_call(steps: Sequence[dict[int, Call]], result: Message) -> Place | None:
    for number in range(len(steps), 0, -1):
        fitting = [place for place, call in steps[number - 1].items() if _fits(call, result)]
        if fitting:
            named = [place for place in fitting if steps[number - 1][place].tool == result.name]
            return number, (named or fitting)[0]
    return None


def _fits(call: Call, result: Message) -> bool:
    if result.tool_call_id:
        return call.call_id == result.tool_call_id
    return not result.name or call.tool == result.name
