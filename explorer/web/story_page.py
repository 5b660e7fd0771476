"""A run as a story in plain sentences, for readers who are not engineers: its input, its actions, its result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from refold.agents.journal.record import Call, Failure, Plain, Recording, Step, child_of
from refold.avro.times import time_text
from refold.explorer.queries.run import RunQuery, known_of
from refold.explorer.queries.run_names import known_run
from refold.explorer.views.messages import answered
from refold.explorer.views.recorded_text import cell, took
from refold.explorer.web.view import PageMoved, PageView

SENTENCES_MAX = 400
SAID_MAX = 280


class Sentence(NamedTuple):
    """One sentence of a story.

    Attributes:
        kind: `did`, `decided`, `said`, `failed` or `kept`.
    """

    kind: str
    text: str


class StoryStep(NamedTuple):
    """One step of the story."""

    number: int
    title: str
    sentences: tuple[Sentence, ...]


def story_page(view: PageView) -> bytes:
    """Return the story of a run at a cut."""
    cut = view.cut()
    (given,) = view.path
    run_id = known_run(view.log, given, cut)
    if run_id != given:
        raise PageMoved(view.with_path(run_id).address())
    run = view.log.recording(run_id, cut)
    chapters: list[StoryStep] = []
    left_out = count = 0
    for step in run.steps:
        sentences = tuple(_step_sentences(step))
        count += len(sentences)
        if count > SENTENCES_MAX:
            left_out = len(run.steps) - len(chapters)
            break
        chapters.append(StoryStep(step.number, step.name, sentences))
    return view.render(
        "story.html", run.title or f"Run {run_id}", cut, [("the run", RunQuery(run_id, str(cut)))], run=run,
        opening=list(_opening(run)), chapters=chapters, ending=list(_ending(run)), left_out=left_out,
        known=known_of(view.log, run, cut, is_now=False),
        started=time_text(run.started_at) if run.started_at else None,
    )  # fmt: skip


def _opening(run: Recording) -> Iterator[str]:
    who = run.agent or "An agent"
    for_whom = f" for the user {cell(run.user, 60)}" if run.user else ""
    yield f"{cell(who, 60)} worked{for_whom}."
    if run.given is not None:
        yield _sentence(f"It was given {_value_text(run.given)}")
    if run.parent:
        yield (f"It went on from run {cell(run.parent, 60)} after step {run.forked_at}, with something changed. "
               "The steps up to there are that run's.")  # fmt: skip


def _step_sentences(step: Step) -> Iterator[Sentence]:
    for attempt in step.attempts[:-1]:
        if attempt.failure is not None:
            yield Sentence("failed", f"A first try failed: {_failure_text(attempt.failure)}. It tried again.")
    for call in step.calls:
        yield from _call_sentences(call)
    if step.failure is not None and not any(call.failure for call in step.calls):
        yield Sentence("failed", f"The step failed: {_failure_text(step.failure)}.")
    if isinstance(step.result, str) and step.result:
        yield Sentence("said", _sentence(f"It said {_value_text(step.result)}"))
    if not step.attempts and not step.calls:
        yield Sentence("did", "What it did in this step is not recorded in its run.")
    elif not step.is_committed:
        yield Sentence("failed", "The record ends here: nothing is known of how the step ended.")


def _call_sentences(call: Call) -> Iterator[Sentence]:
    name = cell(call.asked.name or call.asked.kind, 60)
    for retry in call.retries:
        yield Sentence("failed", f"It tried {name}, which failed: {_failure_text(retry.failure)}. It tried again.")
    if call.asked.kind == "decide":
        why = call.asked.request.get("why")
        because = f", because {_value_text(why)}" if why else ""
        yield Sentence("decided", _sentence(f"It decided: {_value_text(call.asked.request.get('choice'))}{because}"))
    elif call.failure is not None:
        yield Sentence(
            "failed", f"It {_verb(call)} {name}{_arguments_text(call)}. That failed: {_failure_text(call.failure)}."
        )
    elif call.asked.kind == "model":
        texts = [str(part.value) for each in answered(call.answer) for part in each.parts if part.kind == "text"]
        answer = " ".join(texts) if texts else call.answer
        named = "" if name == "model" else f" {name}"
        yield Sentence("said", _sentence(f"It asked the model{named}, which answered {_value_text(answer)}"))
    elif call.asked.kind == "read":
        yield Sentence("did", f"It looked up {name}.")
    elif call.asked.kind == "observe":
        yield Sentence("kept", f"It recorded something of {name}.")
    elif call.asked.kind == "run":
        yield Sentence("did", f"It had {name} work on a part of it (run {cell(child_of(call), 40)}).")
    elif call.asked.kind == "tool":
        got = "" if call.answer is None else f", and got {_value_text(call.answer)}"
        yield Sentence("did", _sentence(f"It {_verb(call)} {name}{_arguments_text(call)}{got}"))


def _verb(call: Call) -> str:
    return "carried out" if call.asked.effect == "write" else "used"


def _arguments_text(call: Call) -> str:
    request = call.asked.request
    if not isinstance(request, dict):
        return ""
    given = [_value_text(each) for each in request.get("args") or ()]
    given += [f"{name} {_value_text(value)}" for name, value in (request.get("kwargs") or {}).items()]
    return f" with {cell(', '.join(given), SAID_MAX)}" if given else ""


def _ending(run: Recording) -> Iterator[Sentence]:
    is_timed = bool(run.started_at and run.ended_at)
    after = f" after {took(time_text(run.started_at), time_text(run.ended_at))}" if is_timed else ""
    if run.failure is not None:
        yield Sentence("failed", f"It ended{after} with a failure: {_failure_text(run.failure)}.")
    elif run.outcome == "succeeded":
        yield Sentence("kept", f"It ended well{after}.")
    elif run.outcome:
        yield Sentence("failed", f"It ended{after}: {run.outcome.replace('_', ' ')}.")
    else:
        yield Sentence("failed", "It has not ended, or it was cut short: its end is not recorded.")
    if run.output is not None:
        yield Sentence("kept", _sentence(f"It came to {_value_text(run.output)}"))


def _sentence(text: str) -> str:
    """Return the text with a full stop at its end, unless it ends with a quotation that has one."""
    return text if text.endswith((".”", "?”", "!”")) else f"{text}."


def _failure_text(failure: Failure) -> str:
    return cell(failure.message.rstrip(".") or failure.exception.rpartition(".")[2], SAID_MAX)


def _value_text(value: Plain) -> str:
    """Format a value for a sentence: a text in quotes, a small record as its members."""
    if isinstance(value, str):
        return f"“{cell(value, SAID_MAX)}”" if " " in value or not value else cell(value, SAID_MAX)
    if isinstance(value, dict) and 0 < len(value) <= 6:
        return ", ".join(f"{cell(name, 60)} {_value_text(each)}" for name, each in value.items())
    if isinstance(value, list) and 0 < len(value) <= 6:
        return "; ".join(map(_value_text, value))
    if isinstance(value, list) and len(value) > 6:
        return f"a list of {len(value):,}"
    return cell(value, SAID_MAX)
