"""The page of a run: its timeline, and one of its steps in full. It opens at the failure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, takewhile
from typing import Any, NamedTuple, cast

from refold.agents.journal.difference import ABSENT, Difference, differences
from refold.agents.journal.record import Call, Plain, Recording, Step
from refold.agents.journal.self_replay import begun_with, states
from refold.agents.log import AgentLog
from refold.agents.recorder.observations import model_call
from refold.agents.redaction.redactor import Redact
from refold.agents.usage.of_runs import summed, usage_of_call, usage_of_run
from refold.agents.usage.prices import prices
from refold.avro.errors import InputError, NotAnswerable, RefoldError
from refold.explorer.queries.costs import cost_text, dollars
from refold.explorer.queries.query import Query
from refold.explorer.queries.run import KnewQuery, RunQuery, StepsQuery, clear_json
from refold.explorer.queries.run_names import known_run
from refold.explorer.queries.run_shapes import call_json, run_json, step_json
from refold.explorer.web.messages import ModelMessage, ModelRequest, answered, asked, message_of, messages_of
from refold.explorer.web.timeline import timeline, title_of
from refold.explorer.web.view import PageMoved, PageView
from refold.streams.cut import Cut

LISTED_AROUND = 60
CHANGES_MAX = 60
# What run_json leaves out where it is not so.
NOT_WITHIN = {"caller": "", "caller_step": 0, "children": (), "synthetic_time": False}
NAMED = ("tool", "model", "run")
OF_THE_PROCESS = ("now", "random", "uuid")


class StateDifference(NamedTuple):
    """A place in a state. has_before, has_after: whether anything was there. message: what was added, if it is one."""

    path: str
    before: Plain
    after: Plain
    has_before: bool
    has_after: bool
    message: ModelMessage | None = None


def run_page(view: PageView) -> bytes:
    """One run at a cut, open at a step."""
    cut = view.cut()
    (given,) = view.path
    run_id = known_run(view.log, given, cut)
    if run_id != given:
        raise PageMoved(view_of(view, run_id).address())
    query = RunQuery(run_id, str(cut))
    try:
        run = view.log.recording(run_id, cut)
    except NotAnswerable as error:
        found = clear_json(view.log, run_id, cut, error)
        return view.render("run_clear.html", f"Run {run_id}", cut, [("this run", query)], run=found)
    title = run.title or f"Run {run_id}"
    number = view.number("step")
    if number is None:
        number = opening_step(run)
    shown: list[tuple[str, Query]] = [("the run", query)]
    shown_step: dict[str, Any] | None = None
    if run.steps:
        if not 1 <= number <= len(run.steps):
            raise InputError(f"run {run_id} has no step {number} at this cut: it has {len(run.steps)}")
        shown.append((f"step {number}", StepsQuery(run_id, str(cut), number)))
        step = run.steps[number - 1]
        before = begun_with(run, number, next(islice(states(run), number - 1, None)))
        after = next(islice(states(run), number, None))
        shown_step, knew = step_shown(view.log, run, step, before, after, cut)
        shown.append((f"what it knew by step {number}", knew))
    usage = summed(usage_of_run(run))
    drawn = timeline(run, view.get("scale"))
    fields = view.log.state(f"run/{run_id}", cut).fields
    return view.render(
        "run.html", title, cut, shown, is_live=not run.outcome, run={**NOT_WITHIN, **run_json(run)}, number=number,
        timeline=drawn, listed=list(_listed(view, run, number, cut)), forks=_forks(view, run_id, cut),
        is_raw=bool(view.get("raw")),
        cost="" if usage is None else cost_text(usage),
        is_pinned=run.pinned,
        tokens={name: fields.get(f"{name}_tokens") for name in ("input", "output")}, shown=shown_step,
    )  # fmt: skip


def view_of(view: PageView, run_id: str) -> PageView:
    """The same page of another run."""
    return PageView(view.log, view.place, view.renderer, view.name, (run_id,), view.query)


def opening_step(run: Recording) -> int:
    """Where a run is opened: at the failure it ended with, at the last step where it has not ended, else at the first
    failure that it had, else at its beginning."""
    failed = [step.number for step in run.steps if step.failure is not None or step.outcome in ("failed", "timed_out")]
    if not run.outcome:
        return len(run.steps)
    if run.outcome in ("failed", "timed_out", "cancelled"):
        return failed[-1] if failed else len(run.steps)
    return failed[0] if failed else 1


def step_shown(
    log: AgentLog, run: Recording, step: Step, before: Plain, after: Plain, cut: Cut, redact: Redact = lambda tree: tree
) -> tuple[dict[str, Any], Query]:
    """What is shown of a step, and the question for what was known by then. before, after: the run's state around it;
    redact: what of each tree may be shown."""
    before, after = redact(before), redact(after)
    changed = differences(before, after)
    # A step that goes on, or was cut short, has no end to ask for: what the log holds at the cut counts.
    knew = KnewQuery(run.agent, f"run:{run.run}#{step.number}" if step.is_committed else str(cut), run.run)
    reads, not_known = [], ""
    try:
        reads = redact(knew.answer(log)["reads"])
    except RefoldError as error:
        not_known = str(error)
    given: Any = redact(step_json(step, has_code=run.has_code))
    is_asked = any(call.asked.kind == "model" for call in step.calls)
    said = () if is_asked or not isinstance(before, dict) else messages_of(before.get("messages"))
    return {
        "step": given,
        "is_recorded": bool(step.attempts),
        "calls": list(_calls(run, step, given, redact)),
        "attempts": [
            {**each, "told": [_call(call, each["failure"]) for call in step_calls]}
            for each, step_calls in zip(given["attempts"][:-1], _earlier(step, run, redact), strict=False)
        ],
        "changed": [_changed(each) for each in changed[:CHANGES_MAX]],
        "changed_count": len(changed),
        "before": before,
        "after": after,
        "context": said,
        "observed": {} if step.attempts else redact(_observed(log, run, [step], cut).get(step.number, {})),
        "reads": reads,
        "not_known": not_known,
    }, knew


def _calls(run: Recording, step: Step, given: dict[str, Any], redact: Redact) -> Iterator[dict[str, Any]]:
    """The calls of a step. Of the messages of a model's request, how many the call before it had been asked already."""
    before = _asked_before(run, step, redact)
    for call, told in zip(step.calls, given["calls"], strict=True):
        made = _call(told, given["failure"])
        if call.asked.kind == "model":
            made |= {"said_before": _in_common(before, made["exchange"]), "facts": model_facts(call)}
            before = made["exchange"] or before
        yield made


def _asked_before(run: Recording, step: Step, redact: Redact) -> ModelRequest | None:
    """What the last model call before a step was asked."""
    for each in reversed(run.steps[: step.number - 1]):
        for call in reversed(each.calls):
            if call.asked.kind == "model":
                return asked(redact(call.asked.request))
    return None


def _in_common(before: ModelRequest | None, now: ModelRequest | None) -> int:
    """How many messages two requests have in common at their beginning; 0 where all are, so that something is shown."""
    if before is None or now is None:
        return 0
    same = takewhile(lambda pair: pair[0] == pair[1], zip(before.messages, now.messages, strict=False))
    count = sum(1 for _ in same)
    return count if count < len(now.messages) else 0


def model_facts(call: Call) -> list[str]:
    """What a model call says of itself by the names that clients use: model, tokens, why it ended, cost."""
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


def _observed(log: AgentLog, run: Recording, steps: Iterable[Step], cut: Cut) -> dict[int, dict[str, Any]]:
    """By number, what was observed of steps that no recorder wrote: their entities' fields."""
    names = {f"step/{run.run}#{step.number}": step.number for step in steps}
    return {names[name]: state.shown() for name, state in log.states(list(names), cut).items()}


def _earlier(step: Step, run: Recording, redact: Redact) -> Iterator[list[dict[str, Any]]]:
    """The calls of the attempts before the last, each as step_json gives those of the last."""
    for attempt in step.attempts[:-1]:
        yield [cast("dict[str, Any]", redact(call_json(call, has_code=run.has_code))) for call in attempt.calls]


def _call(call: dict[str, Any], failure: dict[str, Any] | None) -> dict[str, Any]:
    """A call, with its messages where a model was called, and its arguments by name where a tool was.

    failure: of the attempt; a call that failed it is not shown to have failed a second time.
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
        "is_told": _is_told(call["failure"], failure),
        "said_before": 0,
        "facts": (),
        "exchange": asked(request) if is_model else None,
        "answered": answered(call["answer"]) if is_model else (),
        "arguments": arguments,
        "is_function": is_function,
        "is_of_the_process": call["kind"] in OF_THE_PROCESS,
    }


def _is_told(failure: dict[str, Any] | None, known: dict[str, Any] | None) -> bool:
    """Whether a failure is one that is shown already."""
    same = ("exception", "message")
    return failure is not None and known is not None and all(failure[name] == known[name] for name in same)


def _changed(each: Difference) -> StateDifference:
    has = each.left is not ABSENT, each.right is not ABSENT
    left, right = each.left if has[0] else None, each.right if has[1] else None
    return StateDifference(each.path or "all of it", left, right, *has, None if has[0] else message_of(right))


def _listed(view: PageView, run: Recording, number: int, cut: Cut) -> Iterator[dict[str, Any]]:
    """The steps near one, for the list."""
    first = max(0, number - 1 - LISTED_AROUND)
    shown = run.steps[first : number + LISTED_AROUND]
    observed = _observed(view.log, run, [step for step in shown if not step.attempts], cut)
    for step in shown:
        calls = [
            call.asked.name or call.asked.kind for call in step.calls if call.asked.kind in ("tool", "model", "run")
        ]
        begun = [each.started_at for each in step.attempts if each.started_at]
        ended = [each.ended_at for each in step.attempts if each.ended_at]
        yield {
            "number": step.number,
            "name": title_of(step) or str(observed.get(step.number, {}).get("decision") or ""),
            "outcome": step.outcome or ("pending" if not step.is_committed else ""),
            "failed": step.failure is not None or step.outcome in ("failed", "timed_out"),
            "milliseconds": (max(ended) - min(begun)) / 1000 if begun and ended else None,
            "calls": calls,
            "retries": sum(len(call.retries) for call in step.calls) + max(len(step.attempts) - 1, 0),
        }


def _forks(view: PageView, run_id: str, cut: Cut) -> list[dict[str, Any]]:
    """The forks of this run at the cut."""
    return [
        {"run": row.run, "outcome": row.outcome, "title": row.title}
        for row in view.log.runs(parent=run_id, at=cut, limit=LISTED_AROUND)
    ]
