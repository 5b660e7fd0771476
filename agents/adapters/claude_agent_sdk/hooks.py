"""Hooks of the Claude Agent SDK: each tool call is recorded while it is made, and a policy decides before it is.

    from refold.claude_agent_sdk import RefoldHooks

    with RefoldHooks("file:.refold", guard="policy.toml") as hooks:
        async for message in query(prompt="Hello", options=ClaudeAgentOptions(hooks=hooks.hooks())):
            ...

1. Before a tool runs, the policy decides. Its facts are those of the session: the calls of its run in the log, if
   RefoldSessionStore recorded them there, and every call since.
2. The call is recorded as the action of its session's run (tool_calls.py), pending, with its arguments, its effect and
   the decision. That is durable before the tool runs: of a process that was killed the log says which tools may have
   run.
3. A denied call gets the SDK's `deny` with the reason. It is recorded as rejected, and the denial as an audit event.
4. A rule that asks a person is a question in the log, as for other agents (policy/guard.py). The call is denied for
   now, and the reason says how to answer. When Claude makes the same call again, also in a resumed session, the answer
   decides. One answer is for one call: it is marked as used before the call is allowed.
5. After the tool, its result and its end are recorded, durable before Claude continues.

If a call cannot be recorded, it is denied if there is a policy; otherwise it goes ahead, and a warning is logged. The
SDK's own permissions apply as well: an allowed call may still be denied by them. Such a call stays pending.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import anyio
from claude_agent_sdk import HookMatcher
from claude_agent_sdk.types import HookCallback, HookContext, HookEvent, HookInput, HookJSONOutput

from refold.agents.adapters.claude_agent_sdk.tool_calls import call_entity, run_of_session
from refold.agents.adapters.folded import recent
from refold.agents.adapters.log_holder import LogContext
from refold.agents.journal.record import Call, Effect, Failure, RecordedRequest
from refold.agents.log import AgentLog
from refold.agents.policy.decision import PolicyDecision
from refold.agents.policy.decision_log import ask_person, denial_patch
from refold.agents.policy.facts import arguments_of
from refold.agents.policy.guard import TAG, Guard, Guarding, guard_of, policy_of
from refold.agents.recordings.imported import ERROR
from refold.agents.vault import run_key
from refold.avro.canonical import json_tree
from refold.avro.errors import RefoldError, UnknownEntity
from refold.avro.observation import Source

READS = frozenset({"Glob", "Grep", "LS", "NotebookRead", "Read", "TaskOutput", "ToolSearch", "WebFetch", "WebSearch"})
"""Claude Code's own tools that change nothing."""
SESSIONS_KEPT = 256
_OPEN_CALLS_MAX = 4096
logger = logging.getLogger("refold.claude_agent_sdk")


class HookedCall(NamedTuple):
    """A call that was allowed and has not ended.

    Attributes:
        started_at: When it was allowed, in microseconds since 1970.
    """

    asked: RecordedRequest
    started_at: int


class RefoldHooks(LogContext):
    """Records tool calls, and holds them to a policy; for any number of sessions at once.

    A context manager, sync and async: on exit it closes the log if it opened it.
    """

    def __init__(
        self, log: str | os.PathLike[str] | AgentLog | None = None, *, guard: Guarding | None = None,
        agent: str = "claude-agent-sdk", reads: Callable[[str], bool] = READS.__contains__,
    ) -> None:  # fmt: skip
        """Open the log.

        Args:
            log: As for RefoldSessionStore. With both, give them the same log.
            guard: The policy, or the path of its file. None: nothing is denied.
            agent: The source of the observations.
            reads: Returns whether a tool only reads, by its name. Every other tool may write.

        Raises:
            InputError: The policy's file is invalid.
        """
        self._policy = policy_of(guard)
        self._hold(log)
        self._agent = agent
        self._reads = reads
        self._guards: OrderedDict[str, Guard] = OrderedDict()
        self._open: OrderedDict[str, HookedCall] = OrderedDict()
        self._turn = threading.Lock()
        # Retention finds the content of a run by its source. A process that resumes a session later counts from later.
        self._seq = itertools.count(time.time_ns())

    def hooks(self) -> dict[HookEvent, list[HookMatcher]]:
        """Return what `ClaudeAgentOptions(hooks=...)` takes."""
        ended = self._callback(self._end_call)
        return {
            "PreToolUse": [HookMatcher(hooks=[self._callback(self._begin_call)])],
            "PostToolUse": [HookMatcher(hooks=[ended])],
            "PostToolUseFailure": [HookMatcher(hooks=[ended])],
        }

    def _callback(self, work: Callable[[Mapping[str, Any]], HookJSONOutput]) -> HookCallback:
        async def called(given: HookInput, call: str | None, context: HookContext) -> HookJSONOutput:
            del call, context  # the input has the call's id
            return await anyio.to_thread.run_sync(functools.partial(self._run_safely, work, given))

        return called

    def _run_safely(
        self, work: Callable[[Mapping[str, Any]], HookJSONOutput], given: Mapping[str, Any]
    ) -> HookJSONOutput:
        """Do the work of a hook. The agent never fails because of refold."""
        try:
            with self._turn:
                return work(given)
        except Exception as error:  # a log that is away, or a defect
            level = logging.WARNING if isinstance(error, RefoldError) else logging.ERROR
            logger.log(level, "a call of %s is not recorded: %s", given.get("tool_name"), error)
            if self._policy is not None and given.get("hook_event_name") == "PreToolUse":
                return _denial_output(f"policy {self._policy.name} requires a record, and the log cannot be written")
            return {}

    def _begin_call(self, given: Mapping[str, Any]) -> HookJSONOutput:
        run, tool, call = run_of_session(given["session_id"]), given["tool_name"], given["tool_use_id"]
        entity, now = call_entity(run, call), time.time_ns() // 1000
        arguments = json_tree(json.loads(json.dumps(given["tool_input"])), "the arguments of a tool")
        effect: Effect = "read" if self._reads(tool) else "write"
        request = RecordedRequest(kind="tool", name=tool, request={"args": [], "kwargs": arguments}, effect=effect)
        decision = None if self._policy is None else self._decide(run, request, now)
        patch: dict[str, Any] = {
            "tool": tool, "agent": self._agent, "run": run, "call_id": call, "effect": effect, "started_at": now,
            "inputs": self._seal(run, entity, "inputs", arguments), "status": "pending",
        }  # fmt: skip
        if self._policy is not None:
            patch["tags"] = [f"{TAG}{self._policy.name}"]
        if decision is not None:
            patch["status"] = "rejected"
        observation = self._log.observe(entity, patch, source=self._source(run, tool))
        self._log.link(entity, "of", f"run/{run}", source=self._source(run, tool), causes=[observation])
        if decision is not None and decision.action == "deny":
            denial = denial_patch(decision, request, f"{run}#", now) | {"object": entity}
            del denial["step"]
            self._log.observe(
                f"audit_event/{entity.partition('/')[2]}", denial, source=self._source(run), causes=[observation]
            )
        self._log.flush()
        if decision is not None:
            return _denial_output(decision.why)
        self._open[entity] = HookedCall(request, now)
        if len(self._open) > _OPEN_CALLS_MAX:
            self._open.popitem(last=False)
        return {}

    def _end_call(self, given: Mapping[str, Any]) -> HookJSONOutput:
        run, tool, now = run_of_session(given["session_id"]), given["tool_name"], time.time_ns() // 1000
        entity = call_entity(run, given["tool_use_id"])
        is_failed = given["hook_event_name"] == "PostToolUseFailure"
        answer = given.get("error") if is_failed else given.get("tool_response")
        output = answer if isinstance(answer, str) else json.dumps(answer)
        patch: dict[str, Any] = {
            "tool": tool, "run": run, "status": "failed" if is_failed else "succeeded", "ended_at": now,
            "output": self._seal(run, entity, "output", output), "output_bytes": len(output.encode()),
        }  # fmt: skip
        begun = self._open.pop(entity, None)
        duration_ms = given.get("duration_ms", (now - begun.started_at) / 1000 if begun else None)
        if duration_ms is not None:
            patch["duration_ms"] = float(duration_ms)
        self._log.observe(entity, patch, source=self._source(run, tool))
        self._log.flush()
        if begun is not None and run in self._guards:
            failure = Failure(exception=ERROR, message=output) if is_failed else None
            ended = Call(asked=begun.asked, answer=None if is_failed else output, failure=failure,
                         started_at=begun.started_at, duration_ms=duration_ms or 0)  # fmt: skip
            self._guards[run].ended(ended, run)
        return {}

    # Policy

    def _decide(self, run: str, request: RecordedRequest, now: int) -> PolicyDecision | None:
        """Return the denial of a call, or that a person is asked; None if it is allowed."""
        guard = recent(self._guards, run, lambda: self._guard(run, now), SESSIONS_KEPT)
        decision = guard.decide(request, run)
        if decision is None or decision.action == "deny":
            return decision
        return self._ask_person(guard, run, request, decision, now)

    def _guard(self, run: str, now: int) -> Guard:
        """Return the guard of a session that this process has not seen yet; the calls of its run are counted."""
        assert self._policy is not None
        try:
            return guard_of(self._policy, self._log.recording(run))
        except RefoldError:  # it has no run yet, or one that is not complete
            return Guard(self._policy, now)

    def _ask_person(
        self, guard: Guard, run: str, request: RecordedRequest, decision: PolicyDecision, now: int
    ) -> PolicyDecision | None:
        """Ask a person about a call, or use the answer."""
        nth = 1
        while (status := self._status(question := f"{run}#ask.{request.hash[:12]}.{nth}")) in ("running", "cancelled"):
            nth += 1  # it was used for an earlier call
        authority = f"policy {decision.policy}, rule {decision.rule}"
        if not status:
            entity = f"action/{question}"
            inputs = self._seal(run, entity, "inputs", arguments_of(request))
            ask_person(self._log, question, request.name, run, self._agent, authority, decision.why, now, (), inputs)
        elif status != "awaiting_approval":
            is_approved = status == "pending"
            self._log.observe(f"action/{question}", {"status": "running" if is_approved else "cancelled"})
            if not is_approved:
                return decision._replace(action="deny", why=f"a person rejected it: {decision.why}")
            return guard.decide(request, run, is_approved=True)
        why = f"{decision.why} A person must approve it: refold approve '{question}'"
        return decision._replace(why=why)

    def _status(self, question: str) -> str:
        """Return the status of a question: awaiting_approval; pending or rejected if it was answered; running or
        cancelled if the answer was used; "" if it was not asked."""
        self._log.port.publish()
        self._log.port.refresh()
        try:
            return str(self._log.state(f"action/{question}").fields.get("status", ""))
        except UnknownEntity:
            return ""

    def _seal(self, run: str, entity: str, field: str, value: Any) -> Any:
        return self._log.vault.seal(run_key(run), entity, field, value)

    def _source(self, run: str, tool: str = "") -> Source:
        return Source(self._agent, run, "", tool, next(self._seq))


def _denial_output(why: str) -> HookJSONOutput:
    return {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": why,
        }
    }  # fmt: skip
