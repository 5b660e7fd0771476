"""The hooks of the Claude Agent SDK, by the SDK itself with a stand-in for its command line, and called as it does."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import ClaudeAgentOptions, HookMatcher, ResultMessage, query

import refold
from refold.agents.adapters.claude_agent_sdk.tool_calls import call_entity, run_of_session
from refold.agents.capture.sessions import Sessions
from refold.agents.capture.spool import SpooledExchange
from refold.agents.log import AgentLog
from refold.agents.policy.decision_log import ApprovalQuestion, answer, questions
from refold.agents.recordings.fields import Fields, links_of
from refold.claude_agent_sdk import RefoldHooks, RefoldSessionStore
from refold_tests.child import Child
from refold_tests.command import refold_command
from refold_tests.transcripts import sample_session, transcript
from refold_tests.tree import ROOT

pytestmark = pytest.mark.outside  # it imports the SDK

CLI = ROOT / "tests" / "support" / "refold_tests" / "claude_cli.py"
NUMBERS = itertools.count()


def policy(folder: Path, text: str) -> Path:
    path = folder / f"policy{next(NUMBERS)}.toml"
    path.write_text(f'name = "careful"\n{text}', encoding="utf-8")
    return path


DENYING = (
    '[[rule]]\nname = "no second"\ntool = "Bash"\nargs.command = "echo 2"\naction = "deny"\nwhy = "Once is enough."\n'
)
ASKING = '[[rule]]\nname = "ask"\ntool = "Bash"\naction = "ask"\nwhy = "It costs."\n'


def query_session(
    prompts: Sequence[str], store: RefoldSessionStore, hooks: RefoldHooks, tmp_path: Path, session: str = ""
) -> str:
    """Ask one prompt after the other in one session; return its id."""

    async def whole(session: str) -> str:
        for prompt in prompts:
            given = ClaudeAgentOptions(
                session_store=store, hooks=hooks.hooks(), cli_path=CLI, cwd=tmp_path, resume=session or None,
                env={"CLAUDE_CONFIG_DIR": str(tmp_path / "config")},
            )  # fmt: skip
            async for message in query(prompt=prompt, options=given):
                if isinstance(message, ResultMessage):
                    session = message.session_id
        return session

    return asyncio.run(whole(session))


def targets(log: AgentLog, entity: str) -> list[str]:
    return links_of(log.state(entity), "same")


def test_each_call_is_recorded_once_with_its_decision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "config"))
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        hooks = RefoldHooks(log, guard=policy(tmp_path, DENYING))
        with RefoldSessionStore(log) as store:
            session = query_session(["first", "PLANTED", "delegate"], store, hooks, tmp_path)
        run = run_of_session(session)
        assert [row.run for row in log.runs(tool="Bash")] == [run]
        calls = [call for step in log.recording(run).steps for call in step.calls if call.asked.kind == "tool"]
        assert [call.asked.name for call in calls] == ["Bash", "Bash", "Task"]
        assert [call.failure is None for call in calls] == [True, False, True], "the second was denied"
        assert {call.asked.effect for call in calls} == {"write"}
        actions = [f"action/{run}#{number}.1" for number in (1, 3, 5)]
        for action, status in zip(actions, ["succeeded", "rejected", "succeeded"], strict=True):
            transcribed = Fields(log.state(action), log.vault)
            own = log.state(call_entity(run, transcribed.plain("call_id")))
            assert links_of(own, "same") == [action]
            hooked = Fields(own, log.vault)
            assert hooked.plain("status") == status
            assert hooked.opened("inputs") == transcribed.opened("inputs")
            assert transcribed.plain("tags") == ["policy:careful"]
            if status == "succeeded":
                assert hooked.opened("output") == transcribed.opened("output")
                assert 0 < transcribed.plain("duration_ms") < 600_000
        rejected = log.state(actions[1]).fields["call_id"]
        event = log.state(f"audit_event/{run}#{rejected}").fields
        assert (event["outcome"], event["reason"]) == ("denied", "Once is enough.")
        assert event["object"] == call_entity(run, rejected)
        assert log.verify().mismatches == []
    everything = b"".join(path.read_bytes() for path in (tmp_path / "log").rglob("*") if path.is_file())
    assert b"echo 1" not in everything, "arguments are sealed"


def test_budget_of_a_resumed_session_counts_its_earlier_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "config"))
    session, budget = "", policy(tmp_path, "[budget]\ntool_calls = 1\n")
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        for _ in range(2):
            with RefoldSessionStore(log) as store:
                session = query_session(["again"], store, RefoldHooks(log, guard=budget), tmp_path, session)
        steps = log.recording(run_of_session(session)).steps
        answers = [call.failure is None for step in steps for call in step.calls if call.asked.kind == "tool"]
    assert answers == [True, False]


class Calling:
    """Calls hooks as the SDK does."""

    def __init__(self, hooks: RefoldHooks) -> None:
        self._hooks: Mapping[Any, list[HookMatcher]] = hooks.hooks()

    def __call__(self, event: str, call: str, **given: Any) -> Any:
        own = {"hook_event_name": event, "session_id": "s", "tool_name": "Bash", "tool_input": {"command": "x"},
               "tool_use_id": call, "transcript_path": "", "cwd": ""}  # fmt: skip
        [matcher] = self._hooks[event]
        [hook] = matcher.hooks
        found: Any = asyncio.run(hook({**own, **given}, call, {"signal": None}))  # type: ignore[arg-type]
        return found.get("hookSpecificOutput", {}).get("permissionDecision"), found


def test_asked_call_waits_for_its_answer_and_one_answer_is_for_one_call(tmp_path: Path) -> None:
    asking, run = policy(tmp_path, ASKING), run_of_session("s")
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        calling = Calling(RefoldHooks(log, guard=asking))
        decision, found = calling("PreToolUse", "1")
        [question] = _questions(log)
        assert decision == "deny"
        assert question.id in found["hookSpecificOutput"]["permissionDecisionReason"]
        assert (question.run, question.tool, question.arguments) == (run, "Bash", {"command": "x"})
        assert calling("PreToolUse", "2")[0] == "deny", "nobody answered"
        assert len(_questions(log)) == 1
        answer(log, question.id, 1, is_approved=True, by="ann", reason="")
        resumed = Calling(RefoldHooks(log, guard=asking))
        assert resumed("PreToolUse", "3")[0] is None
        assert resumed("PreToolUse", "4")[0] == "deny", "the answer was used"
        [second] = _questions(log)
        answer(log, second.id, 1, is_approved=False, by="ann", reason="no")
        decision, found = resumed("PreToolUse", "5")
        assert (decision, "rejected" in str(found)) == ("deny", True)
        assert resumed("PreToolUse", "6", tool_name="Read")[0] is None, "no rule is about it"


def test_answering_a_session_names_its_sdk_and_not_a_command_that_would_refuse(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'log'}"
    for is_run_recorded in (False, True):
        with refold.open(url) as log:
            hooks = RefoldHooks(log, guard=policy(tmp_path, ASKING))
            if is_run_recorded:
                with RefoldSessionStore(log) as store:
                    query_session(["hello"], store, hooks, tmp_path)
            else:
                assert Calling(hooks)("PreToolUse", "1")[0] == "deny"
            [question] = _questions(log)
            assert bool(log.states([f"run/{question.run}"])) == is_run_recorded
        done = refold_command("approve", question.id, log=url)
        assert (done.status, "resume the session with the SDK" in done.out) == (0, True), done.err
        assert "refold run resume" not in done.out


def _questions(log: AgentLog) -> list[ApprovalQuestion]:
    return questions(log, log.vault.open)


def test_failed_tool_and_lost_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = refold.open(f"file:{tmp_path / 'log'}")
    strict, lax = Calling(RefoldHooks(log, guard=policy(tmp_path, DENYING))), Calling(RefoldHooks(log))
    lax("PreToolUse", "1")
    lax("PostToolUseFailure", "1", error="no such file", duration_ms=5)
    fields = Fields(log.state(call_entity(run_of_session("s"), "1")), log.vault)
    assert (fields.plain("status"), fields.opened("output"), fields.plain("duration_ms")) == (
        "failed",
        "no such file",
        5,
    )
    log.close()
    assert strict("PreToolUse", "2")[0] == "deny", "a policy requires a record"
    assert lax("PreToolUse", "3")[1] == {}
    assert "is not recorded" in caplog.text


CALLING = """
import asyncio, itertools, sys
from refold.claude_agent_sdk import RefoldHooks

async def whole():
    hooks = RefoldHooks(sys.argv[1]).hooks()
    for number in itertools.count():
        given = {"session_id": "s", "tool_name": "Bash", "tool_input": {"n": number}, "tool_use_id": str(number)}
        for event, more in (("PreToolUse", {}), ("PostToolUse", {"tool_response": {"n": number}})):
            [hook] = hooks[event][0].hooks
            await hook({"hook_event_name": event, **given, **more}, str(number), {"signal": None})
            print(number, event, flush=True)

asyncio.run(whole())
"""


@pytest.mark.faults
def test_killed_agent_leaves_what_its_tools_did(tmp_path: Path, child: Callable[..., Child]) -> None:
    url = f"file:{tmp_path / 'log'}"
    process = child(CALLING, url)
    acknowledged = [process.line().split() for _ in range(9)]
    process.process.kill()
    process.end()
    with refold.open(url) as log:
        for number, event in acknowledged:
            fields = Fields(log.state(call_entity(run_of_session("s"), number)), log.vault)
            assert fields.opened("inputs") == {"n": int(number)}
            if event == "PostToolUse":
                assert (fields.plain("status"), fields.opened("output")) == ("succeeded", f'{{"n": {number}}}')
        assert log.verify().mismatches == []


@pytest.mark.parametrize("first", ["capture", "store"])
def test_stored_session_and_its_capture_are_one_run(tmp_path: Path, first: str) -> None:
    """What a proxy captured of a session, and what the store recorded, are united in either order."""
    session, turns = "0a6e36c1-0000-4000-8000-00000000000d", sample_session(["one", "two"])
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        if first == "capture":
            _capture(log, turns)
        with RefoldSessionStore(log) as store:
            key: Any = {"project_key": "p", "session_id": session}
            entries: Any = transcript(session, turns)
            asyncio.run(store.append(key, entries))
        if first == "store":
            _capture(log, turns)
        [row] = log.runs()
        assert row.agent == "coder", "the captured run is the fuller record"
        own = run_of_session(session)
        assert targets(log, f"run/{own}") == [f"run/{row.run}"]
        assert [targets(log, f"step/{own}#{n}") for n in (1, 2)] == [[f"step/{row.run}#{n}"] for n in (1, 2)]


def _capture(log: AgentLog, turns: Sequence[SpooledExchange]) -> None:
    sessions = Sessions(log, log.capturing(None), "coder", ["s"], {})
    for each in turns:
        sessions.store(each, "s")
    sessions.end()
