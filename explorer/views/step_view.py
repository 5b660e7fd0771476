"""One step of a run, prepared for display: its calls, changes, reads and failure.

The explorer's pages and the deck share this view.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, pairwise, takewhile
from typing import Any, NamedTuple, cast

from refold.agents.journal.difference import ABSENT, Difference, differences
from refold.agents.journal.record import Call, Edit, Plain, Recording, Step
from refold.agents.journal.self_replay import begun_with, states
from refold.agents.log import AgentLog
from refold.agents.recorder.observations import model_call
from refold.agents.recordings.find import words
from refold.agents.redaction.redactor import Redact
from refold.agents.usage.of_runs import usage_of_call
from refold.agents.usage.prices import prices
from refold.avro.errors import RefoldError
from refold.explorer.queries.query import Query
from refold.explorer.queries.run import KnewQuery
from refold.explorer.queries.run_shapes import call_json, dollars, has_failed, step_json, title_of
from refold.explorer.views.messages import ModelMessage, ModelRequest, answered, asked, message_of, messages_of
from refold.streams.cut import Cut

CHANGES_MAX = 60
NAMED = ("tool", "model", "run")
OF_THE_PROCESS = ("now", "random", "uuid")


class StateDifference(NamedTuple):
    """A difference at one path of a state.

    Attributes:
        has_before, has_after: Whether the path had a value before and after.
        message: The added value as a message, if it is one.
    """

    path: str
    before: Plain
    after: Plain
    has_before: bool
    has_after: bool
    message: ModelMessage | None = None


def failed_steps(run: Recording) -> list[int]:
    """Return the numbers of the steps that failed or timed out."""
    return [step.number for step in run.steps if has_failed(step)]


def opening_step(run: Recording) -> int:
    """Return the number of the step at which a run is opened.

    This is the failure that the run ended with. For a run that has not ended it is the last step; otherwise the first
    failure, or else step 1.
    """
    failed = failed_steps(run)
    if not run.outcome:
        return len(run.steps)
    if run.outcome in ("failed", "timed_out", "cancelled"):
        return failed[-1] if failed else len(run.steps)
    return failed[0] if failed else 1


def step_with(run: Recording, text: str) -> int | None:
    """Return the number of the first step whose calls, failures or result contain a text in any case of letters; None
    if none does.
    """
    wanted = text.casefold()
    return next(
        (step.number for step in run.steps if any(wanted in each.casefold() for each in _searched_texts(step))), None
    )  # fmt: skip


def _searched_texts(step: Step) -> Iterator[str]:
    """Yield the texts of a step as `refold runs --text` and `--error` search them."""
    yield from words(step.result)
    for attempt in step.attempts:
        failures = [attempt.failure, *(call.failure for call in attempt.calls)]
        yield from (f"{each.exception}: {each.message}" for each in failures if each is not None)
        for call in attempt.calls:
            yield from words(call.asked.request)
            yield from words(call.answer)


def step_rows(log: AgentLog, run: Recording, number: int, around: int, cut: Cut) -> Iterator[dict[str, Any]]:
    """Yield a row for each step near `number`: at most `around` steps before and after it. The run may have only some
    of its steps.
    """
    shown = [step for step in run.steps if abs(step.number - number) <= around]
    observed = observed_of(log, run, [step for step in shown if not step.attempts], cut)
    for step in shown:
        calls = [call.asked.name or call.asked.kind for call in step.calls if call.asked.kind in NAMED]
        begun = [each.started_at for each in step.attempts if each.started_at]
        ended = [each.ended_at for each in step.attempts if each.ended_at]
        yield {
            "number": step.number,
            "name": title_of(step) or str(observed.get(step.number, {}).get("decision") or ""),
            "outcome": step.outcome or ("pending" if not step.is_committed else ""),
            "failed": has_failed(step),
            "milliseconds": (max(ended) - min(begun)) / 1000 if begun and ended else None,
            "calls": calls,
            "retries": sum(len(call.retries) for call in step.calls) + max(len(step.attempts) - 1, 0),
        }


def step_at(log: AgentLog, run: Recording, number: int, cut: Cut) -> tuple[dict[str, Any], Query]:
    """Return the view of the step with a number, and the question for what the agent knew at its end."""
    before, after = next(islice(pairwise(states(run)), number - 1, None))
    return step_shown(log, run, run.steps[number - 1], begun_with(run, number, before), after, cut)


def step_in_window(log: AgentLog, run: Recording, number: int, cut: Cut) -> tuple[dict[str, Any], Query]:
    """Return the view of a step of a run that has only some of its steps. Its state is not known, because that needs
    all steps before; what the step changed is.
    """
    step = next(each for each in run.steps if each.number == number)
    knew = KnewQuery(run.agent, str(cut), run.run, step=number)
    shown, query = step_shown(log, run, step, None, None, cut, knew=knew)
    changes = [StateDifference(*_edit_difference(each)) for each in step.delta]
    return {**shown, "is_part": True, "changed": changes[:CHANGES_MAX], "changed_count": len(changes)}, query


def _edit_difference(edit: Edit) -> tuple[str, Plain, Plain, bool, bool]:
    """Return an edit of a state as a difference without the value before."""
    kind, path, *rest = edit
    place = ".".join(map(str, path)) or "all of it"
    if kind == "set":
        return place, None, rest[0], False, True
    if kind == "splice":
        index, removed, items = rest
        return f"{place}[{index}:{index + removed}]", None, items, False, bool(items)
    return place, None, None, False, False


def step_shown(
    log: AgentLog, run: Recording, step: Step, before: Plain, after: Plain, cut: Cut,
    redact: Redact = lambda tree: tree, knew: KnewQuery | None = None,
) -> tuple[dict[str, Any], Query]:  # fmt: skip
    """Return the view of a step, and the question for what the agent knew at its end.

    Args:
        log: The log of the run.
        run: The run.
        step: The step to show.
        before: The run's state before the step.
        after: The run's state after it.
        cut: The point that the log is read at.
        redact: Removes secrets from each recorded tree.
        knew: The question for what the agent knew; None: in the whole run, by the end of the step.
    """
    before, after = redact(before), redact(after)
    changed = differences(before, after)
    # An unfinished step has no end to ask for, so the state of the log at the cut is used.
    knew = knew or KnewQuery(run.agent, f"run:{run.run}#{step.number}" if step.is_committed else str(cut), run.run)
    # A received run has spans, and its steps are made of them: they are no entities, and nothing says what they read.
    has_entity = run.has_code or bool(log.states([f"step/{run.run}#{step.number}"], cut))
    reads, not_known = [], ""
    try:
        if has_entity:
            reads = redact(knew.answer(log)["reads"])
    except RefoldError as error:
        not_known = str(error)
    given: Any = redact(step_json(step, has_code=run.has_code))
    is_asked = any(call.asked.kind == "model" for call in step.calls)
    messages = () if is_asked or not isinstance(before, dict) else messages_of(before.get("messages"))
    return {
        "step": given,
        "is_recorded": bool(step.attempts),
        "is_part": False,
        "calls": list(_calls(run, step, given, redact)),
        "attempts": [
            {**each, "told": [_call(call, each["failure"]) for call in step_calls]}
            for each, step_calls in zip(given["attempts"][:-1], _earlier_attempts(step, run, redact), strict=False)
        ],
        "changed": [_state_difference(each) for each in changed[:CHANGES_MAX]],
        "changed_count": len(changed),
        "before": before,
        "after": after,
        "context": messages,
        "observed": {} if step.attempts else redact(observed_of(log, run, [step], cut).get(step.number, {})),
        "has_entity": has_entity,
        "reads": reads,
        "not_known": not_known,
    }, knew


def _calls(run: Recording, step: Step, given: dict[str, Any], redact: Redact) -> Iterator[dict[str, Any]]:
    """Yield the calls of a step. For a model call, `said_before` counts the messages that the previous request had
    already.
    """
    before = _asked_before(run, step, redact)
    for call, shown in zip(step.calls, given["calls"], strict=True):
        view = _call(shown, given["failure"])
        if not run.has_code:  # every call is recorded, and none was served from another run
            view["is_served"] = False
        if call.asked.kind == "model":
            view |= {"said_before": _in_common(before, view["exchange"]), "facts": model_facts(call)}
            before = view["exchange"] or before
        yield view


def _asked_before(run: Recording, step: Step, redact: Redact) -> ModelRequest | None:
    """Return the last model request before a step. None if there is none."""
    for each in reversed([each for each in run.steps if each.number < step.number]):
        for call in reversed(each.calls):
            if call.asked.kind == "model":
                return asked(redact(call.asked.request))
    return None


def _in_common(before: ModelRequest | None, now: ModelRequest | None) -> int:
    """Return how many leading messages two requests share. 0 if all are shared, so that something is shown."""
    if before is None or now is None:
        return 0
    same = takewhile(lambda pair: pair[0] == pair[1], zip(before.messages, now.messages, strict=False))
    count = sum(1 for _ in same)
    return count if count < len(now.messages) else 0


def model_facts(call: Call) -> list[str]:
    """Return what a model call reports about itself: model, tokens, finish reason, cost."""
    found = model_call(call)
    model = found.get("response_model") or found.get("model")
    facts = [str(model)] if model else []
    for name, unit in (("input_tokens", "tokens in"), ("output_tokens", "out"), ("cached_tokens", "from a cache")):
        if found.get(name) is not None:
            facts.append(f"{found[name]:,} {unit}")
    usage = usage_of_call(call)
    cost = None if usage is None else prices().cost(usage.model, usage.tokens)
    facts += [str(each).replace("_", " ") for each in found.get("finish_reasons") or ()]
    return facts if cost is None else [*facts, dollars(cost)]


def observed_of(log: AgentLog, run: Recording, steps: Iterable[Step], cut: Cut) -> dict[int, dict[str, Any]]:
    """Return, by step number, the observed fields of the step's entity. Used for steps that no recorder wrote."""
    names = {f"step/{run.run}#{step.number}": step.number for step in steps}
    return {names[name]: state.shown() for name, state in log.states(list(names), cut).items()}


def _earlier_attempts(step: Step, run: Recording, redact: Redact) -> Iterator[list[dict[str, Any]]]:
    """Yield, for each attempt before the last, its calls in JSON. step_json returns those of the last attempt."""
    for attempt in step.attempts[:-1]:
        yield [cast("dict[str, Any]", redact(call_json(call, has_code=run.has_code))) for call in attempt.calls]


def _call(call: dict[str, Any], failure: dict[str, Any] | None) -> dict[str, Any]:
    """Return a call, prepared for display: messages for a model call, arguments by name for a tool call.

    failure: the failure of the attempt. A call that caused it is not shown as failed a second time.
    """
    is_model = call["kind"] == "model"
    request = call["request"]
    is_function = isinstance(request, dict) and bool(request) and request.keys() <= {"args", "kwargs"}
    arguments = [] if not is_function else [
        *((f"argument {number}", value) for number, value in enumerate(request.get("args") or (), 1)),
        *(request.get("kwargs") or {}).items(),
    ]  # fmt: skip
    return {
        **call,
        "is_told": _is_shown_already(call["failure"], failure),
        "is_served": call["source"] == "recorded",
        "said_before": 0,
        "facts": (),
        "exchange": asked(request) if is_model else None,
        "answered": answered(call["answer"]) if is_model else (),
        "arguments": arguments,
        "is_function": is_function,
        "is_of_the_process": call["kind"] in OF_THE_PROCESS,
    }


def _is_shown_already(failure: dict[str, Any] | None, known: dict[str, Any] | None) -> bool:
    """Return whether a failure is the one that is shown already."""
    same = ("exception", "message")
    return failure is not None and known is not None and all(failure[name] == known[name] for name in same)


def _state_difference(each: Difference) -> StateDifference:
    has = each.left is not ABSENT, each.right is not ABSENT
    left, right = each.left if has[0] else None, each.right if has[1] else None
    return StateDifference(each.path or "all of it", left, right, *has, None if has[0] else message_of(right))
