"""The JSON of runs, steps and calls. Times are RFC 3339 UTC; a missing value is null. Keys may be added, never renamed.

Some keys exist only if they apply:
synthetic_time: true if the run's source left out times; a null time then means that no time was recorded.
caller and caller_step: the run began within another run. children: other runs began within this one.
usage, in a list: it was requested, and the model calls report it.
open: the run has not ended. It says since when nothing was recorded of it, and whether its process runs.

`usage_text` and `cost_text` describe the usage and the cost of model calls in words.
"""

from __future__ import annotations

from typing import Any

from refold.agents.journal.record import Attempt, Call, Failure, Recording, Step
from refold.agents.recordings.find import RUNNING, RunRow
from refold.agents.replay.edges import of_call
from refold.agents.usage.of_runs import UsageSum, summed, usage_of_run, usage_of_step
from refold.explorer.queries.open_runs import UnendedRun
from refold.explorer.queries.shapes import time_json


def usage_text(usage: UsageSum) -> str:
    """`1,234 tokens read, 1,000 of them from a cache, 56 written; $0.0123`"""
    tokens = usage.tokens
    cached = f", {tokens.cached:,} of them from a cache" if tokens.cached else ""
    return f"{tokens.read:,} tokens read{cached}, {tokens.output:,} written; {cost_text(usage)}"


def cost_text(usage: UsageSum) -> str:
    """`$0.0123`, and which models have no price."""
    unknown = f"no price is known of {', '.join(usage.unpriced)}" if usage.unpriced else ""
    if usage.cost_usd is None:
        return unknown
    return dollars(usage.cost_usd) + (f" without some: {unknown}" if unknown else "")


def usage_cost(usage: UsageSum | None) -> str:
    """`$0.0123`, with a + if a model has no price; a dash if no price is known."""
    if usage is None or usage.cost_usd is None:
        return "-"
    return dollars(usage.cost_usd) + ("+" if usage.unpriced else "")


def dollars(amount: float) -> str:
    """Format an amount in US dollars. Smaller amounts get more decimals."""
    return f"${amount:,.2f}" if amount >= 1 else f"${amount:.4f}" if amount >= 0.01 else f"${amount:.6f}"


def row_json(row: RunRow, known: UnendedRun | None = None) -> dict[str, Any]:
    """Return one run as `refold runs` lists it.

    Args:
        row: The run.
        known: What is known of a run that has not ended.
    """
    return {
        "run": row.run,
        "agent": row.agent,
        "version": row.version or None,
        "started": time_json(row.started_at),
        "ended": time_json(row.ended_at),
        "outcome": None if row.outcome == RUNNING else row.outcome,
        "steps": row.steps,
        "parent": row.parent or None,
        "title": row.title or None,
        "flagged": row.flagged,
        "input_tokens": row.input_tokens,
        "output_tokens": row.output_tokens,
        **({} if row.usage is None else {"usage": usage_json(row.usage)}),
        **_caller_json(row.caller, row.caller_step),
        **_synthetic(is_so=row.synthetic_time),
        **({} if known is None else {"open": known.json()}),
    }


def run_json(run: Recording) -> dict[str, Any]:
    """Return a run without its steps."""
    return {
        "run": run.run,
        "agent": run.agent,
        "version": run.version or None,
        "started": time_json(run.started_at),
        "ended": time_json(run.ended_at),
        "outcome": run.outcome or None,
        "steps": len(run.steps),
        "parent": run.parent or None,
        "forked_at": run.forked_at if run.parent else None,
        "patch": run.patch,
        **_caller_json(run.caller, run.caller_step),
        **({"children": [child_json(each) for each in run.children.values()]} if run.children else {}),
        "status": run.status,
        "position": position_json(run),
        "title": run.title or None,
        "user": run.user or None,
        "task": run.task or None,
        "kind": run.kind or None,
        "code_version": run.code_version or None,
        "seed": run.seed,
        "tags": list(run.tags),
        "flagged": run.flagged,
        "retention_class": run.retention_class or None,
        "has_code": run.has_code,
        "hash": run.hash or None,
        "input": run.input,
        "output": run.output,
        "failure": failure_json(run.failure),
        "metadata": run.metadata,
        "usage": usage_json(summed(usage_of_run(run))),
        **_synthetic(is_so=run.synthetic_time),
    }


def usage_json(usage: UsageSum | None) -> dict[str, Any] | None:
    """Return the tokens and the cost of model calls in JSON. None if no call reports any.

    input_tokens: all tokens read, including cached ones. cost_usd: the cost of the models whose price is known, null if
    no price is known. unpriced: the models whose price is not known.
    """
    if usage is None:
        return None
    tokens = usage.tokens
    by_model = [{"model": name, **(usage_json(each) or {})} for name, each in usage.by_model.items()]
    return {
        "input_tokens": tokens.read,
        "cached_tokens": tokens.cached,
        "cache_write_tokens": tokens.written,
        "output_tokens": tokens.output,
        "cost_usd": None if usage.cost_usd is None else round(usage.cost_usd, 8),
        "unpriced": usage.unpriced,
        **({"models": by_model} if by_model else {}),
    }


def child_json(run: Recording) -> dict[str, Any]:
    """Return a run that began within another, in short."""
    return {
        "run": run.run,
        "agent": run.agent,
        "caller_step": run.caller_step,
        "outcome": run.outcome or None,
        "steps": len(run.steps),
        "children": [child_json(each) for each in run.children.values()],
    }


def _caller_json(caller: str, step: int) -> dict[str, Any]:
    return {"caller": caller, "caller_step": step} if caller else {}


def _synthetic(*, is_so: bool) -> dict[str, bool]:
    return {"synthetic_time": True} if is_so else {}


def position_json(run: Recording) -> dict[str, Any] | None:
    """Return the position of a run, which is its last step. None if it has no steps."""
    if not run.steps:
        return None
    last = run.steps[-1]
    return {"step": last.number, "name": last.name, "status": status_of(last), "attempt": len(last.attempts)}


def step_json(step: Step, *, has_code: bool = True) -> dict[str, Any]:
    """Return one step: its five layers and its hashes in the chain.

    Args:
        has_code: Whether code can be run against the run.
    """
    decided = decision_of(step)
    return {
        "step": step.number,
        "name": step.name,
        "status": status_of(step),
        "outcome": step.outcome or None,
        "decision": None if decided is None else decided["choice"],
        "rationale": None if decided is None else decided["why"],
        "calls": [call_json(call, has_code=has_code) for call in step.calls],
        "attempts": [_attempt_json(each) for each in step.attempts],
        "failure": failure_json(step.failure),
        "result": step.result,
        "usage": usage_json(summed(usage_of_step(step))),
        "delta": list(step.delta),
        "state_before": step.state_before or None,
        "state_after": step.state_after or None,
        "previous": step.previous or None,
        "hash": step.hash or None,
    }


def call_json(call: Call, *, has_code: bool = True) -> dict[str, Any]:
    """Return one call, verbatim."""
    return {
        "kind": call.asked.kind,
        "name": call.asked.name,
        "effect": call.asked.effect or None,
        "edge": of_call(call, has_code=has_code)[0],
        "request": call.asked.request,
        "ignored": list(call.asked.ignored),
        "found_by": call.asked.found_by,
        "answer": call.answer,
        "failure": failure_json(call.failure),
        "retries": [
            {"attempt": each.attempt, "failure": failure_json(each.failure), "backoff_ms": each.backoff_ms}
            for each in call.retries
        ],
        "key": call.key or None,
        "source": call.source,
        "branch": call.branch or None,
        "started": time_json(call.started_at),
        "duration_ms": call.duration_ms,
    }


def failure_json(failure: Failure | None) -> dict[str, Any] | None:
    """Return a failure in JSON; None for no failure."""
    if failure is None:
        return None
    return {
        "exception": failure.exception,
        "message": failure.message,
        "tool": failure.tool or None,
        "at": time_json(failure.at),
        "input": failure.input,
        "output": failure.output,
        "retryable": failure.retryable,
        "traceback": failure.traceback or None,
    }


def status_of(step: Step) -> str:
    """Return "committed" or "pending"."""
    return "committed" if step.is_committed else "pending"


def decision_of(step: Step) -> dict[str, Any] | None:
    """Return the last decision of a step, {choice, why, options}; None if it decided nothing."""
    decided = [call.asked.request for call in step.calls if call.asked.kind == "decide"]
    return decided[-1] if decided else None


def has_failed(step: Step) -> bool:
    """Return whether a step failed or timed out."""
    return step.failure is not None or step.outcome in ("failed", "timed_out")


def title_of(step: Step) -> str:
    """Return a step's name, or else its decision, or else an empty text."""
    decided = decision_of(step)
    return step.name or ("" if decided is None else str(decided["choice"]))


def _attempt_json(attempt: Attempt) -> dict[str, Any]:
    return {
        "attempt": attempt.number,
        "started": time_json(attempt.started_at),
        "ended": time_json(attempt.ended_at),
        "calls": len(attempt.calls),
        "failure": failure_json(attempt.failure),
        "backoff_ms": attempt.backoff_ms,
    }
