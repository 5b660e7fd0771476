"""A conversation whose task another conversation passed in a tool call is a nested run of that one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import refold
from refold.agents.capture.exchange import request_of
from refold.agents.capture.sessions import Sessions
from refold.agents.capture.spool import SpooledExchange
from refold.agents.journal.chain import broken
from refold.explorer.cli.runs.lines import tree_of

BEGIN = 1_700_000_000_000_000
TASKS = ["find where the tests of the proxy are", "count the lines of the folder"]


def turn(at: int, messages: list[Any], content: list[Any]) -> SpooledExchange:
    """Return a turn in the form of Anthropic's API."""
    body = json.dumps({"model": "m", "messages": messages}).encode()
    request = request_of("POST", "http://h/v1/messages", "application/json", body)
    reply = json.dumps({"id": f"m{at}", "type": "message", "role": "assistant", "content": content})
    answer = {"sent": [], "http": "HTTP/1.1", "status": 200, "headers": [], "end": "whole", "chunks": [[0, reply]]}
    return SpooledExchange(Path("none"), BEGIN + at, "POST h/v1/messages", request, answer, None, 1.0)


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


def test_sub_agent_is_a_child_run_of_its_caller(tmp_path: Path) -> None:
    tasks = [*TASKS, TASKS[1], "short"]
    calls = [
        {"type": "tool_use", "id": f"t{k}", "name": "Task", "input": {"description": "look", "prompt": task}}
        for k, task in enumerate(tasks)
    ]
    asked = [{"role": "user", "content": "what is here, and how much of it?"}]
    results = [{"type": "tool_result", "tool_use_id": f"t{k}", "content": "done"} for k in range(len(tasks))]
    after = [*asked, {"role": "assistant", "content": calls}, {"role": "user", "content": results}]
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        sessions = Sessions(log, log.capturing(None), "coder", ["s"], {})
        sessions.store(turn(1, asked, calls), "s")
        for at, task in enumerate([*tasks, "a conversation of its own"], 2):
            reminded = {"role": "user", "content": [text("<system-reminder>x</system-reminder>"), text(task)]}
            sessions.store(turn(at, [reminded], [text(f"done with {task}")]), "s")
        sessions.store(turn(9, after, [text("all is done")]), "s")
        runs = [log.recording(run) for run in sessions.end().runs]
        actions = [log.state(f"action/{runs[0].run}#1.{k}") for k in range(1, 5)]
    parent, first, second, third, short, own = runs
    assert list(parent.children) == [first.run, second.run, third.run]
    assert [line.partition(":")[0] for line in tree_of(parent)] == [f"coder {each}" for each in parent.children]
    assert [(each.caller, each.caller_step) for each in (first, second, third)] == [(parent.run, 1)] * 3
    assert [each.caller for each in (parent, short, own)] == ["", "", ""]
    began = [[each["target"] for each in action.links if each["relation"] == "began"] for action in actions]
    assert began == [[f"run/{first.run}"], [f"run/{second.run}"], [f"run/{third.run}"], []]
    assert [list(broken(each)) for each in runs] == [[]] * 6
    assert parent.output == "all is done"
