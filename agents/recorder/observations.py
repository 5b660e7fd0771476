"""A run and its steps as observations: the content of each field of run/<id> and step/<id>#<n>.

Payloads, which may hold anybody's words, pass through `seal`. Names of steps and tools, times, counts and hashes are
stored in clear, so that runs can be found by them. Everything that a replay needs is in the steps' journals; the other
fields repeat the parts that people search for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from refold.agents.capture.answers import json_exchange, reported_tokens
from refold.agents.capture.exchange import is_exchange
from refold.agents.journal import json_fidelity
from refold.agents.journal.record import Attempt, Call, Failure, Plain, Recording, Step, to_tree
from refold.agents.usage.tokens import usage_in
from refold.agents.vault import ALL_METADATA, is_sealed

Seal = Callable[[str, str, Plain], Any]
"""Returns the form in which a patch holds a payload: (entity, field, JSON tree) -> a value, a Sealed, or a Blob."""

Patch = dict[str, Any]


def in_clear(entity: str, field: str, tree: Plain) -> Plain:
    """Return payloads unchanged."""
    return tree


def run_entity(run: str) -> str:
    """Return run/<id>."""
    return f"run/{run}"


def step_entity(run: str, number: int) -> str:
    """Return step/<id>#<n>."""
    return f"step/{run}#{number}"


def run_begun(head: Recording, entry: str, attempt: int, seal: Seal) -> Patch:
    """Return a run's first observation or, with fewer fields, that of a resumed run.

    Args:
        head: The run's head, as it is recorded.
        entry: The name of the agent's function.
        attempt: How often the run was begun, including this time.
        seal: Seals payloads.
    """
    entity = run_entity(head.run)
    if attempt > 1:
        return {"status": "running", "attempts": attempt}
    patch = _present(
        agent=head.agent, agent_version=head.version, code_version=head.code_version, kind=head.kind, task=head.task,
        user=head.user, entry=entry, parent_run=head.parent, tags=list(head.tags), seed=head.seed,
        caller_run=head.caller, caller_step=head.caller_step if head.caller else None,
    )  # fmt: skip
    patch |= {"status": "running", "attempts": attempt, "started_at": head.started_at}
    if head.redacted:
        patch["redacted"] = True
    if not head.parent:  # a fork begins as its parent did, so it does not repeat these fields
        patch["state"] = seal(entity, "state", json_fidelity.written(head.state))
    if head.input is not None and not head.parent:
        patch["input"] = seal(entity, "input", json_fidelity.written(head.input))
    if head.title:
        patch["title"] = seal(entity, "title", head.title)
    if head.metadata:
        patch["metadata"] = _metadata(entity, head.metadata, seal)
    if head.parent:
        patch["forked_at_step"] = head.forked_at
        patch["fork_patch"] = seal(entity, "fork_patch", json_fidelity.written(head.patch))
    return patch


def _metadata(entity: str, metadata: Plain, seal: Seal) -> Patch:
    """Return the metadata for a patch: sealed, it is one value under ALL_METADATA, with its names; in clear, each value
    is under its name."""
    whole = seal(entity, "metadata", json_fidelity.written(metadata))
    if is_sealed(whole):
        return {ALL_METADATA: whole}
    return {key: seal(entity, "metadata", json_fidelity.written(value)) for key, value in metadata.items()}


def run_ended(ended: Recording, seal: Seal) -> Patch:
    """Return a run's last observation."""
    entity = run_entity(ended.run)
    patch: Patch = {
        "status": "ended", "outcome": ended.outcome or "unknown", "hash": ended.hash, "ended_at": ended.ended_at,
        "step_count": len(ended.steps), "position": len(ended.steps), "retention_class": ended.retention_class,
        "duration_ms": (ended.ended_at - ended.started_at) / 1000,
    }  # fmt: skip
    if ended.output is not None:
        patch["output"] = seal(entity, "output", json_fidelity.written(ended.output))
    if ended.failure is not None:
        patch["error"] = _failure(ended.failure, entity, "error", "", seal)
    return patch


def step_begun(run: str, agent: str, number: int, name: str, attempt: int, at: int) -> Patch:
    """Return a step's first observation, and the first of each further attempt.

    Args:
        at: Microseconds.
    """
    patch: Patch = {"run": run, "agent": agent, "position": number, "status": "pending", "attempts": attempt}
    return patch | _present(name=name) | {"started_at": at}


def calls_answered(run: str, number: int, calls: Mapping[str, Call], seal: Seal) -> Patch:
    """Return the observation of calls that ended while their step continues.

    Args:
        run: The run's id.
        number: The step's number.
        calls: By ATTEMPT/PLACE (recordings/durable_calls.py).
        seal: Encrypts them.
    """
    entity = step_entity(run, number)
    return {"answered": {key: seal(entity, "answered", to_tree(_call_json(call))) for key, call in calls.items()}}


def attempt_failed(run: str, number: int, attempt: Attempt, seal: Seal) -> Patch:
    """Return the observation of an attempt that failed and is followed by another.

    Args:
        run: The run's id.
        number: The step's number.
        attempt: The attempt.
        seal: Encrypts its content.
    """
    entity = step_entity(run, number)
    retry: Patch = {"attempt": attempt.number, "at": attempt.ended_at, "backoff_ms": attempt.backoff_ms}
    if attempt.failure is not None:
        text = f"{attempt.failure.exception}: {attempt.failure.message}"
        retry["error"] = seal(entity, "retries", text)
    patch = {"journal": _journal(entity, attempt.number, {"attempt": _attempt_tree(attempt)}, seal), "retries": [retry]}
    if reads := list(_reads(attempt)):  # the agent knows what it read, whatever the result of the attempt
        patch["reads"] = reads
    return patch


def step_ended(run: str, step: Step, before: Step | None, stored: Attempt, seal: Seal) -> Patch:
    """Return the observation of a step's end: what it did in its last attempt, and its position in the chain.

    Args:
        run: The run's id.
        step: The step.
        before: The step before it, whose hashes this one does not repeat.
        stored: The last attempt, as its journal stores it (journal/repeated_bodies.py).
        seal: Seals payloads.
    """
    entity, last = step_entity(run, step.number), step.attempts[-1]
    journal = {
        "attempt": _attempt_tree(stored),
        "delta": json_fidelity.written(step.delta),
        "result": json_fidelity.written(step.result),
    }
    patch: Patch = {
        "status": "committed", "outcome": step.outcome, "journal": _journal(entity, last.number, journal, seal),
        "state_after": step.state_after, "turn_hash": step.hash, "ended_at": last.ended_at,
        "duration_ms": (last.ended_at - step.attempts[0].started_at) / 1000,
    }  # fmt: skip
    if before is None or before.state_after != step.state_before:
        patch["state_before"] = step.state_before
    if before is None or before.hash != step.previous:
        patch["previous_turn_hash"] = step.previous
    decided = [call.asked.request for call in last.calls if call.asked.kind == "decide"]
    if decided:
        choice = decided[-1]["choice"]
        patch["decision"] = seal(entity, "decision", choice if isinstance(choice, str) else repr(choice))
        if decided[-1]["why"]:
            patch["rationale"] = seal(entity, "rationale", decided[-1]["why"])
    tools = [call.asked.name for call in last.calls if call.asked.kind == "tool"]
    if tools:
        patch["calls"] = [{"position": position, "tool": tool} for position, tool in enumerate(tools, 1)]
    if reads := list(_reads(last)):
        patch["reads"] = reads
    if models := [model_call(call) for call in last.calls if call.asked.kind == "model"]:
        patch["model_calls"] = models
    if last.failure is not None:
        patch["failure"] = _failure(last.failure, entity, "failure", entity.partition("/")[2], seal)
    return patch


def _journal(entity: str, attempt: int, journal: Plain, seal: Seal) -> Patch:
    return {str(attempt): seal(entity, "journal", journal)}


def _attempt_tree(attempt: Attempt) -> Plain:
    """Return an attempt's tree. Payloads are exact, as in a journal; the order of its own members is fixed."""
    calls = tuple(map(_call_json, attempt.calls))
    return to_tree(replace(attempt, calls=calls, failure=_failure_json(attempt.failure)))


def _call_json(call: Call) -> Call:
    return replace(
        call,
        asked=replace(
            call.asked,
            request=json_fidelity.written(call.asked.request),
            found_by=json_fidelity.written(call.asked.found_by),
        ),
        answer=json_fidelity.written(call.answer),
        failure=_failure_json(call.failure),
        retries=tuple(replace(each, failure=_failure_json(each.failure)) for each in call.retries),
    )


def _failure_json(failure: Any) -> Any:
    if failure is None or failure.input is failure.output is failure.details is None:
        return failure
    payloads = {name: json_fidelity.written(getattr(failure, name)) for name in ("input", "output", "details")}
    return replace(failure, **payloads)


def _reads(attempt: Attempt) -> Iterator[Patch]:
    for call in attempt.calls:
        if call.asked.kind == "read" and call.failure is None:
            answer = call.answer
            yield {
                "entity": call.asked.name, "observations": answer["observations"], "state_hash": answer["state_hash"],
                "version": answer["version"], "cut": answer["cut"], "read_at": call.started_at,
            }  # fmt: skip


def model_call(call: Call) -> Patch:
    """Return parts of the request and the answer under the names that model clients use for them."""
    request, answer = said_in_call(call)
    input_tokens, output_tokens = reported_tokens(answer)
    usage = usage_in(answer)
    number, text = (int, float), (str,)
    return _present(
        model=_typed(request.get("model"), text), temperature=_typed(request.get("temperature"), number),
        top_p=_typed(request.get("top_p"), number), max_tokens=_typed(request.get("max_tokens"), (int,)),
        seed=_typed(request.get("seed"), (int,)), response_model=_typed(answer.get("model"), text),
        response_id=_typed(answer.get("id"), text),
        input_tokens=input_tokens, output_tokens=output_tokens, cached_tokens=usage.cached or None if usage else None,
        provider=provider_of(request, answer), finish_reasons=finish_reasons(answer),
    ) | {
        "request_hash": call.asked.hash, "determinism": call.source, "started_at": call.started_at,
        "duration_ms": call.duration_ms,
    }  # fmt: skip


def said_in_call(call: Call) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the request to a model and its answer as JSON objects, whatever recorded the call."""
    if is_exchange(call.asked.request):
        return json_exchange(call.asked.request, call.answer)
    request = call.asked.request.get("kwargs", {}) if isinstance(call.asked.request, dict) else {}
    return request, call.answer if isinstance(call.answer, dict) else {}


def provider_of(request: Plain, answer: Plain) -> str | None:
    """Return the provider of a model call's answer, as the GenAI conventions name it: as the answer states, or by its
    form.

    Answers in OpenAI's form are "openai", whatever their provider, because the conventions define the name so.
    """
    request, answer = (each if isinstance(each, dict) else {} for each in (request, answer))
    for name in (answer.get("provider"), request.get("provider")):
        if isinstance(name, str) and name:
            return name
    form = answer.get("object")
    if form in ("chat.completion", "chat.completion.chunk", "text_completion", "response"):
        return "openai"
    if answer.get("type") == "message" and "stop_reason" in answer:
        return "anthropic"
    if isinstance(answer.get("candidates"), list):
        return "gcp.gemini"
    return "aws.bedrock" if "stopReason" in answer else "ollama" if "done_reason" in answer else None


def finish_reasons(answer: Plain) -> list[str]:
    """Return why a model stopped, for each choice that it gave, in the provider's own words."""
    if not isinstance(answer, dict):
        return []
    found = [
        each.get(name) for several, name in (("choices", "finish_reason"), ("candidates", "finishReason"))
        for each in (answer[several] if isinstance(answer.get(several), list) else ()) if isinstance(each, dict)
    ]  # fmt: skip
    found += [answer.get(name) for name in ("stop_reason", "stopReason", "finish_reason", "done_reason")]
    return [each for each in found if isinstance(each, str)]


def _failure(failure: Failure, entity: str, field: str, step: str, seal: Seal) -> Patch:
    patch = _present(
        at=failure.at or None, step=step, tool=failure.tool, exception=failure.exception, retryable=failure.retryable
    )
    payloads = {"message": failure.message, "traceback": failure.traceback}
    patch |= {name: seal(entity, field, value) for name, value in payloads.items() if value}
    if failure.input is not None:
        patch["input"] = seal(entity, field, json_fidelity.written(failure.input))
    return patch


def _typed(value: object, types: tuple[type, ...]) -> Any:
    return value if isinstance(value, types) and not isinstance(value, bool) else None


def _present(**fields: object) -> Patch:
    return {name: value for name, value in fields.items() if value not in (None, "", [], {})}
