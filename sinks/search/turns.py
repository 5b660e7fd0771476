"""The searched content of a log. A turn is the content of one step, the input and output of a run, or a conversation.

    step/RUN#N       the step's new messages, or else its calls with their answers; failures; what it decided
    run/RUN          title, input, output, failure
    agent_session/S  the messages of an imported conversation

Of a captured turn only the messages that it added are indexed, as assembled messages: a request repeats earlier
messages, and the pieces of a stream split words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from refold.agents.capture.answers import body_of, event_texts
from refold.agents.capture.exchange import is_exchange
from refold.agents.importers.json_lines import parse_json
from refold.agents.journal.record import Plain
from refold.agents.recordings.fields import Fields
from refold.agents.recordings.find import words
from refold.agents.recordings.received import is_span
from refold.agents.recordings.same_turns import SAME
from refold.agents.usage.of_runs import ModelUsage, usage_of_fields
from refold.agents.vault import is_sealed
from refold.avro.errors import CorruptionError, InputError, NotAnswerable
from refold.avro.observation import type_of

TYPES = ("run", "step", "agent_session")
_ESCAPED = re.compile(r'\\(?:u[0-9a-fA-F]{4}|[nrtbf"\\/])')
# Fields whose text is also elsewhere, or is not written by a person or model.
_LEFT_OUT = frozenset({"state", "metadata", "answered", "span"})


@dataclass(slots=True)
class SearchedTurn:
    """One turn.

    Attributes:
        owner: The run's or conversation's entity, or that of a received run's step.
        step: The number of the step; 0 for the content of the whole.
        at: When it began, in microseconds since 1970.
        text: The text; None if it cannot be read, or is sealed and was not requested.
        error: The name of the exception's class.
        is_same: Whether another record of the session has it (agents/recordings/same_turns.py), and is searched
            instead.
    """

    owner: str
    step: int
    at: int
    is_sealed: bool
    text: str | None
    tools: list[str] = field(default_factory=list)
    models: list[str] = field(default_factory=list)
    error: str = ""
    agent: str = ""
    usage: list[ModelUsage] = field(default_factory=list)
    is_same: bool = False


@dataclass(frozen=True, slots=True)
class SearchedRun:
    """The fields of a run that are in clear."""

    run: str
    agent: str
    session: str
    started_at: int


def turn_of_entity(fields: Fields, *, opens_sealed: bool) -> SearchedTurn:
    """Return the turn of an entity of one of TYPES.

    Args:
        opens_sealed: Whether sealed content is read.
    """
    kind, _, name = fields.entity.partition("/")
    run, _, number = name.rpartition("#") if kind == "step" else (name, "", "0")
    owner = f"agent_session/{name}" if kind == "agent_session" else f"run/{run}"
    if is_span(number):  # its step has no number of its own
        owner, number = fields.entity, "0"
    sealed = any(_has_sealed(fields.plain(each)) for each in fields.payloads)
    turn = SearchedTurn(owner, int(number), fields.plain("started_at", 0) or fields.plain("ended_at", 0), sealed, None)
    if fields.linked(SAME):
        turn.is_same = True
        return turn
    if kind == "step":
        turn.tools = _tools(fields)
        clear = fields.plain("model_calls") or ()
        named = (call.get(each) for call in clear for each in ("model", "response_model"))
        turn.models = list(dict.fromkeys(each for each in named if each))
        turn.usage = usage_of_fields(fields)
    turn.error = _exception(fields, "failure" if kind == "step" else "error") if kind != "agent_session" else ""
    turn.agent = fields.plain("agent", "")
    if opens_sealed or not sealed:
        try:
            turn.text = text_of(fields)
        except (NotAnswerable, CorruptionError):
            turn.text = None
    return turn


def run_of_entity(fields: Fields) -> SearchedRun:
    """What is in clear of a run's entity."""
    plain = fields.plain
    return SearchedRun(
        fields.entity.removeprefix("run/"), plain("agent", ""), plain("session", ""), plain("started_at", 0)
    )


def text_of(fields: Fields) -> str:
    """Return all text of an entity. Raises NotAnswerable or CorruptionError."""
    return "\n".join(_texts(fields))


def _texts(fields: Fields) -> Iterator[str]:
    # A recorded step's journal contains the text of its other fields.
    names = [each for each in fields.payloads if each not in _LEFT_OUT]
    if "journal" in names:
        for part in fields.exact_map("journal").values():
            if isinstance(part, dict):
                yield from _attempt_texts(part)
        return
    for name in names:
        yield from words(fields.exact(name))


def _attempt_texts(part: dict[str, Any]) -> Iterator[str]:
    """The texts of an attempt: changes of the run's state, the result, the calls, and their failures."""
    delta = part.get("delta") or ()
    for kind, _, *rest in delta:
        yield from words(rest[-1] if kind == "splice" else rest)
    yield from words(part.get("result"))
    attempt = part.get("attempt") or {}
    yield from words(attempt.get("failure"))
    for call in attempt.get("calls") or ():
        asked = call.get("asked") or {}
        yield from words([asked.get("name"), call.get("failure")])
        if not is_exchange(asked.get("request")):
            yield from words([asked.get("request"), call.get("answer")])
        elif not delta:
            yield from _body_texts(asked["request"].get("body"))
            yield from _answer_texts(call.get("answer"))


def _body_texts(body: Plain) -> Iterator[str]:
    """The texts of a request's body, or of its new part."""
    parts = body.get("parts") or () if isinstance(body, dict) else (body,)
    for part in parts:
        if isinstance(part, str):
            yield from _json_texts(part)


def _answer_texts(answer: Plain) -> Iterator[str]:
    if not isinstance(answer, dict):
        return
    body = body_of(answer).decode("utf-8", "replace")
    try:
        yield from words(parse_json(body, ""))
    except InputError:
        for _, text in event_texts(answer):
            yield from _json_texts(text)


def _json_texts(text: str) -> Iterator[str]:
    """The texts in a JSON document; for an incomplete document, the text without escapes."""
    try:
        yield from words(parse_json(text, ""))
    except InputError:
        yield _ESCAPED.sub(" ", text)


def _tools(fields: Fields) -> list[str]:
    try:
        calls = fields.opened("calls")
    except (NotAnswerable, CorruptionError):
        return []
    return list(dict.fromkeys(each["tool"] for each in calls or () if isinstance(each, dict) and each.get("tool")))


def _exception(fields: Fields, name: str) -> str:
    failure = fields.plain(name)
    return str(failure.get("exception") or "") if isinstance(failure, dict) else ""


def _has_sealed(stored: Any) -> bool:
    if isinstance(stored, dict):
        return any(map(_has_sealed, stored.values()))
    return any(map(_has_sealed, stored)) if isinstance(stored, list) else is_sealed(stored)


def is_searched(entity: str) -> bool:
    """Whether an entity is a turn, or a run."""
    return type_of(entity) in TYPES
