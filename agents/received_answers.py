"""The recorded answers of tools, models and nested runs. With an agent's reads (knew.py) they are all that it knew.

1. A step's journal has the calls of each attempt, with the request and the result: an answer or a failure. Calls of a
   failed attempt count too: the agent knows their answers.
2. For an imported conversation the step names its tool calls, and the results are in their actions.
3. An answer counts from the time it was received: the call's begin plus its duration.
4. Steps are read in their order, run by run, because the body of a request may continue an earlier one's.
5. A step whose content has expired, is sealed with no key here, or is damaged is named with the reason. The others are
   returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from refold.agents.journal.record import Call
from refold.agents.journal.repeated_bodies import BodyReader
from refold.agents.recordings.fields import Fields
from refold.agents.recordings.imported import action_call, action_names
from refold.agents.recordings.load import step_of
from refold.agents.vault import ValueCipher
from refold.avro.errors import CorruptionError, NotAnswerable
from refold.streams.client import Log
from refold.streams.cut import Cut
from refold.streams.view import EntityView


class Heard(NamedTuple):
    """One answer. place: the position of its call in the attempt, counted from 1. at: when received, in
    microseconds."""

    run: str
    step: int
    attempt: int
    place: int
    at: int
    call: Call

    @property
    def question(self) -> str:
        """The same for equal questions."""
        return self.call.asked.hash


class Unheard(NamedTuple):
    """A step whose answers are unknown, and why."""

    run: str
    step: int
    why: str


def heard_in(log: Log, vault: ValueCipher, steps: Iterable[EntityView], cut: Cut) -> tuple[list[Heard], list[Unheard]]:
    """Return the answers in some steps, in the order in which they were received.

    Args:
        log: The log of the steps.
        vault: Opens their content.
        steps: Views of entities of the type step.
        cut: The point at which the actions of imported steps are read.

    Returns:
        The answers, and the steps whose content cannot be read.
    """
    found: list[Heard] = []
    missing: list[Unheard] = []
    bodies: dict[str, BodyReader] = {}
    for run, number, fields in sorted((_placed(Fields(view, vault)) for view in steps), key=lambda each: each[:2]):
        try:
            found += _of_step(log, vault, fields, run, number, cut, bodies.setdefault(run, BodyReader()))
        except (NotAnswerable, CorruptionError) as error:
            missing.append(Unheard(run, number, str(error)))
    return sorted(found, key=lambda each: (each.at, each.run, each.step, each.attempt, each.place)), missing


def last_answers(found: Iterable[Heard]) -> list[Heard]:
    """Return the last answer to each request, in the order in which they were received."""
    last = {(each.call.asked.kind, each.question): each for each in found}
    return sorted(last.values(), key=lambda each: (each.at, each.run, each.step, each.attempt, each.place))


def _placed(fields: Fields) -> tuple[str, int, Fields]:
    return fields.plain("run", ""), fields.plain("position", 0), fields


def _of_step(
    log: Log, vault: ValueCipher, fields: Fields, run: str, number: int, cut: Cut, bodies: BodyReader
) -> Iterator[Heard]:
    if names := [] if fields.plain("journal") else action_names(fields):
        actions = log.states(names, cut)
        calls = [action_call(Fields(actions[name], vault), synthetic=False) for name in names if name in actions]
        yield from _answers(run, number, 1, calls)
        return
    for attempt in step_of(number, fields, None, bodies).attempts:
        yield from _answers(run, number, attempt.number, attempt.calls)


def _answers(run: str, number: int, attempt: int, calls: Iterable[Call]) -> Iterator[Heard]:
    for place, call in enumerate(calls, 1):
        if call.asked.kind in ("tool", "model", "run"):
            yield Heard(run, number, attempt, place, call.started_at + round(call.duration_ms * 1000), call)
