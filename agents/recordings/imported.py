"""Convert an imported conversation (agents/importers) to a recording, step by step from its log's entities.

    step     one assistant message, n from 1. Its state is {"messages": [...]}: before the first step the messages
             before the first reply, after step n all messages before step n+1's reply; a delta appends
    call     one `tool` for each call of the message: its arguments, and the verbatim result. A result that reports
             an error is both the answer and the failure; a call without a result failed as UNANSWERED.
             Then `decide`: the message's outcome, and its reason if it has one
    result   the text of the message

The recording has no code (has_code is False): it can be stepped through, compared and shown. A conversation has no
hashes, so they are computed here, by the rules of journal/chain.py. A step with unanswered calls is not committed, and
has no hash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from refold.agents.journal.record import Attempt, Call, Edit, Effect, Failure, Plain, RecordedRequest, Recording, Step
from refold.agents.journal.self_replay import chained
from refold.agents.recordings.fields import Fields, Look, PartMissing
from refold.agents.vault import ValueCipher

UNANSWERED = "unanswered"
ERROR = "Error"


class ReadFields(Protocol):
    """The fields of an entity, as `Fields` has them."""

    def plain(self, field: str, default: Any = None) -> Any: ...

    def opened(self, field: str) -> Plain: ...

    def every(self, field: str) -> list[Plain]: ...


ReadEntities: TypeAlias = Callable[[list[str]], Sequence[ReadFields]]
"""Returns the entities of these names, in their order. Raises PartMissing if one does not exist."""
OF_MESSAGE = ("content_type", "name", "tool_call_id", "tool_calls", "extra")


def is_imported(run: Fields) -> bool:
    """Return whether an importer made a run's entity."""
    return bool(run.plain("imported_from"))


def imported(read: ReadEntities, run: ReadFields, run_id: str) -> Recording:
    """Return the recording of an imported run.

    Args:
        read: Reads entities.
        run: The run's fields.
        run_id: The run's id.

    Raises:
        PartMissing: A part of the conversation is missing at this point.
    """
    [session] = read([f"agent_session/{run.plain('session', run_id)}"])
    said = sorted(session.every("messages"), key=lambda each: int(each["index"]))
    messages = [_message(each) for each in said]
    places = {int(each["index"]): place for place, each in enumerate(said)}
    steps = read([f"step/{run_id}#{n}" for n in range(1, run.plain("step_count", 0) + 1)])
    named = [action_names(each) for each in steps]
    actions = iter(read([name for names in named for name in names]))
    begins = [places[each.plain("message_index")] for each in steps]
    ends = [*begins[1:], len(messages)] if begins else []
    synthetic = bool(run.plain("synthetic_time"))
    made = []
    for step, names, begin, end in zip(steps, named, begins, ends, strict=True):
        calls = [action_call(next(actions), synthetic=synthetic) for _ in names]
        made.append(_step(step, calls, _append_edits(messages[begin:end], begin)))
    state = {"messages": messages[: begins[0] if begins else len(messages)]}
    return chained(_recording(run, run_id, state, tuple(made)))


def _recording(run: ReadFields, run_id: str, state: Plain, steps: tuple[Step, ...]) -> Recording:
    plain = run.plain
    return Recording(
        run=run_id, agent=plain("agent", ""), version=plain("agent_version", ""), kind=plain("kind", ""),
        task=plain("task", ""), title=run.opened("title") or "", user=plain("user", ""), input=run.opened("input"),
        seed=plain("seed"), state=state, steps=steps, status=plain("status", ""), outcome=plain("outcome", ""),
        output=run.opened("output"), started_at=plain("started_at", 0), ended_at=plain("ended_at", 0), has_code=False,
        synthetic_time=plain("synthetic_time", False),
        flagged=plain("flagged", False), pinned=plain("pinned", False), retention_class=plain("retention_class", ""),
        tags=tuple(plain("tags", ())), metadata=run.opened("metadata") or {},
    )  # fmt: skip


def stored(look: Look, vault: ValueCipher) -> ReadEntities:
    """Return a function that reads stored entities.

    Args:
        look: Looks up entities.
        vault: Decrypts contents.
    """

    def read(names: list[str]) -> list[Fields]:
        views = look(names) if names else {}
        for name in names:
            if name not in views:
                raise PartMissing(f"its {name} is missing at this point: the import was not finished; import it again")
        return [Fields(views[name], vault) for name in names]

    return read


def _message(given: Mapping[str, Any]) -> dict[str, Any]:
    more = {key: given[key] for key in OF_MESSAGE if given.get(key) is not None}
    return {"role": given["role"], "content": given.get("content"), **more}


def _append_edits(messages: list[dict[str, Any]], begin: int) -> tuple[Edit, ...]:
    return (["splice", ["messages"], begin, 0, messages],) if messages else ()


def action_names(step: ReadFields) -> list[str]:
    """Return the entities of a step's tool calls."""
    return [f"action/{each['action']}" for each in step.opened("calls") or () if each.get("action")]


def _step(step: ReadFields, calls: list[Call], changes: tuple[Edit, ...]) -> Step:
    choice = {"choice": step.opened("decision") or "", "why": step.opened("rationale") or "", "options": None}
    started_at = step.plain("started_at", 0)
    decided = Call(asked=RecordedRequest(kind="decide", request=choice), started_at=started_at, source="recorded")
    attempt = Attempt(
        calls=(*calls, decided), failure=_failure_of(step.opened("failure")), started_at=started_at,
        ended_at=step.plain("ended_at", 0),
    )  # fmt: skip
    return Step(
        number=step.plain("position"), name=step.plain("name", ""), attempts=(attempt,), delta=changes,
        result=step.opened("message"), outcome=step.plain("outcome", ""),
    )  # fmt: skip


def action_call(action: ReadFields, *, synthetic: bool) -> Call:
    """Return a tool call from its entity.

    Args:
        synthetic: Whether its times are synthetic; then it has no duration.
    """
    tool, inputs, output = action.plain("tool", ""), action.opened("inputs"), action.opened("output")
    effect: Effect = action.plain("effect") if action.plain("effect") in ("read", "write") else ""
    started_at, ended_at, status = action.plain("started_at", 0), action.plain("ended_at", 0), action.plain("status")
    failure = None
    if status == "failed":
        failure = Failure(exception=ERROR, message=output or "", at=ended_at, tool=tool, input=inputs, output=output)
    elif status != "succeeded":
        failure = Failure(exception=UNANSWERED, message="no result is recorded", tool=tool, input=inputs)
    return Call(
        asked=RecordedRequest(kind="tool", name=tool, request=arguments_of(inputs), effect=effect),
        answer=output, failure=failure, started_at=started_at, source="recorded",
        duration_ms=0 if synthetic or not ended_at else (ended_at - started_at) / 1000,
    )  # fmt: skip


def arguments_of(inputs: Plain) -> Plain:
    """Return arguments by name. A value that is not an object, such as text that is not JSON, is the only argument."""
    if isinstance(inputs, Mapping):
        return {"args": [], "kwargs": dict(inputs)}
    return {"args": [] if inputs is None else [inputs], "kwargs": {}}


def _failure_of(given: Mapping[str, Any] | None) -> Failure | None:
    if not given:
        return None
    return Failure(
        exception=given.get("exception") or ERROR, message=given.get("message") or given.get("output") or "",
        at=given.get("at") or 0, tool=given.get("tool") or "", input=given.get("input"), output=given.get("output"),
    )  # fmt: skip
