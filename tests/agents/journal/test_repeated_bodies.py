"""Bodies that repeat earlier ones are restored to the byte, and a long conversation costs only what is new in it."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.agents.journal.record import Attempt, Call, RecordedRequest, Step
from refold.agents.journal.repeated_bodies import BYTES_MIN, BodyReader, BodyWriter
from refold.avro.errors import CorruptionError


def step_with(number: int, *bodies: Any) -> Step:
    requests = ({"exchange": 1, "method": "POST", "url": "http://h/", "type": "", "body": body} for body in bodies)
    calls = tuple(Call(asked=RecordedRequest(kind="model", request=each)) for each in requests)
    return Step(number=number, name="turn", attempts=(Attempt(calls=calls),), outcome="succeeded")


def stored(steps: list[Step]) -> list[Attempt]:
    """Return the attempts as a log would store them."""
    writer = BodyWriter()
    found = []
    for step in steps:
        (attempt,) = step.attempts
        found.append(Attempt(calls=tuple(map(writer.shortened, attempt.calls))))
        writer.ended(step)
    return found


def read(numbers: list[int], attempts: list[Attempt]) -> list[list[Any]]:
    """Return the restored bodies."""
    reader = BodyReader()
    found = []
    for number, attempt in zip(numbers, attempts, strict=True):
        whole = reader.whole("step/r#1", attempt)
        reader.ended(Step(number=number, name="turn", attempts=(whole,), outcome="succeeded"))
        found.append([call.asked.request["body"] for call in whole.calls])
    return found


PIECES = st.lists(
    st.sampled_from(['{"a": "' + "x" * 60 + '"},', '{"b": "\\u00e4ä🤔' + "y" * 70 + '"}', "]", "}", "z" * 400])
)
BODIES = st.one_of(PIECES.map("".join), PIECES.map(lambda each: "[" + "".join(each) + "]"), st.just({"base64": "AA=="}),
                  st.just('{"after": "no reference, but a text"}'))  # fmt: skip


@given(st.lists(st.lists(BODIES, max_size=3), max_size=8))
def test_each_body_round_trips(given_bodies: list[list[Any]]) -> None:
    steps = [step_with(number, *bodies) for number, bodies in enumerate(given_bodies, 1)]
    assert read([step.number for step in steps], stored(steps)) == given_bodies


def conversation(turns: int, seed: int) -> tuple[list[str], int]:
    """Return the bodies of a conversation, and how many of their characters are new.

    Cache marks move with its end, and the system prompt after the messages has another date each time.
    """
    dice = random.Random(seed)
    messages: list[dict[str, Any]] = []
    bodies, new = [], 0
    system = [{"type": "text", "text": f"{dice.randbytes(2000).hex()}"}]
    for number in range(turns):
        content = [{"type": "text", "text": dice.randbytes(200).hex()} for _ in range(2)]
        messages.append({"role": "user", "content": content})
        new += len(json.dumps(messages[-1]))
        marked = [
            {**each, "cache_control": {"type": "ephemeral"}} if each in messages[-2:] else each for each in messages
        ]
        date = {"type": "text", "text": f"today is {number}"}
        bodies.append(json.dumps({"model": "m", "messages": marked, "system": [date, *system], "stream": False}))
        messages.append({"role": "assistant", "content": [{"type": "text", "text": dice.randbytes(200).hex()}]})
        new += len(json.dumps(messages[-1]))
    return bodies, new + len(json.dumps(system))


def test_conversation_costs_only_its_new_content() -> None:
    bodies, new = conversation(200, seed=1)
    steps = [step_with(number, body) for number, body in enumerate(bodies, 1)]
    attempts = stored(steps)
    size = sum(len(json.dumps(call.asked.request)) for attempt in attempts for call in attempt.calls)
    assert size < 3 * new < sum(map(len, bodies)) / 10
    assert read([step.number for step in steps], attempts) == [[body] for body in bodies]


def test_two_alternating_conversations_cost_no_more() -> None:
    (first, new), (second, more) = conversation(40, seed=2), conversation(40, seed=3)
    bodies = [body for pair in zip(first, second, strict=True) for body in pair]
    attempts = stored([step_with(number, body) for number, body in enumerate(bodies, 1)])
    assert sum(len(json.dumps(call.asked.request)) for each in attempts for call in each.calls) < 3 * (new + more)


def test_body_whose_predecessor_is_gone_raises_an_error_naming_the_step() -> None:
    bodies, _ = conversation(2, seed=4)
    _, second = stored([step_with(number, body) for number, body in enumerate(bodies, 1)])
    with pytest.raises(CorruptionError, match="step/r#2: the body of a request continues an earlier one"):
        BodyReader().whole("step/r#2", second)


def test_reader_of_a_part_keeps_a_body_whose_predecessor_it_has_not_read() -> None:
    bodies, _ = conversation(3, seed=4)
    _, second, third = stored([step_with(number, body) for number, body in enumerate(bodies, 1)])
    reader = BodyReader(keeps_unknown=True)
    assert reader.whole("step/r#2", second) == second
    assert reader.unknown == 1
    reader.ended(step_with(2, bodies[1]))
    assert reader.whole("step/r#3", third).calls[0].asked.request["body"] == bodies[2]
    assert reader.unknown == 1


def test_short_bodies_are_stored_whole() -> None:
    body = "{" + "x" * (BYTES_MIN - 2)
    (_, second) = stored([step_with(1, body), step_with(2, body)])
    assert second.calls[0].asked.request["body"] == body
