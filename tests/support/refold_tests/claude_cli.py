#!/usr/bin/env python3
"""A stand-in for Claude Code's command line, as far as the Claude Agent SDK talks with it: no model, no network.

It answers each prompt, calls one tool for it, writes its transcript below CLAUDE_CONFIG_DIR, and mirrors that to the
SDK. With --resume it continues the transcript that it finds there. A prompt that contains "delegate" starts a
subagent. Before a tool it asks the hooks that the SDK registered, and does without the tool if they deny it.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
import uuid
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ["CLAUDE_CONFIG_DIR"]) / "projects" / re.sub(r"[^a-zA-Z0-9]", "-", str(Path.cwd()))


def say(frame: dict[str, Any]) -> None:
    print(json.dumps(frame), flush=True)


class Session:
    """A session: its transcripts in files and in the SDK."""

    def __init__(self, identity: str) -> None:
        self.id = identity
        self.path = FOLDER / f"{identity}.jsonl"
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        self.parent = json.loads(lines[-1])["uuid"] if lines else None
        self.turns = sum(json.loads(line)["type"] == "user" for line in lines) // 2
        self.hooks: dict[str, list[str]] = {}
        self.asked = itertools.count()

    def add(self, kind: str, content: Any, *, agent: str = "", **more: Any) -> None:
        path = self.path.with_suffix("") / "subagents" / f"agent-{agent}.jsonl" if agent else self.path
        entry = {
            "type": kind, "uuid": str(uuid.uuid4()), "parentUuid": self.parent, "sessionId": self.id, "cwd": os.curdir,
            "timestamp": f"2026-03-01T12:00:{next(SECONDS):02d}.000Z", "version": "2.1.0", "isSidechain": bool(agent),
            "message": {"role": kind, "content": content, **({"id": f"msg_{uuid.uuid4().hex}", "model": "claude-x"}
                        if kind == "assistant" else {})}, **({"agentId": agent} if agent else {}), **more,
        }  # fmt: skip
        if not agent:
            self.parent = entry["uuid"]
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(entry)}\n")
        say({"type": "transcript_mirror", "filePath": str(path), "entries": [entry]})

    def hook(self, event: str, given: dict[str, Any], call: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for callback in self.hooks.get(event, ()):
            request = f"hook-{next(self.asked)}"
            given = {"hook_event_name": event, "session_id": self.id, "transcript_path": str(self.path),
                     "cwd": str(Path.cwd()), "tool_use_id": call, **given}  # fmt: skip
            say({"type": "control_request", "request_id": request, "request": {
                "subtype": "hook_callback", "callback_id": callback, "input": given, "tool_use_id": call}})  # fmt: skip
            for line in sys.stdin:
                answer = json.loads(line)
                if answer.get("type") == "control_response":
                    found |= answer["response"].get("response") or {}
                    break
        return found

    def turn(self, prompt: Any) -> None:
        text = prompt if isinstance(prompt, str) else json.dumps(prompt)
        self.turns += 1
        self.add("user", text)
        call, given = f"toolu_{uuid.uuid4().hex}", {"command": f"echo {self.turns}"}
        name, tool = ("Task", {"prompt": "look"}) if "delegate" in text else ("Bash", given)
        self.add("assistant", [{"type": "tool_use", "id": call, "name": name, "input": tool}])
        decision = self.hook("PreToolUse", {"tool_name": name, "tool_input": tool}, call)
        denied = (decision.get("hookSpecificOutput") or {}).get("permissionDecision") == "deny"
        if name == "Task":
            self.add("user", "look", agent="a1")
            self.add("assistant", [{"type": "text", "text": "seen"}], agent="a1")
        output = "denied" if denied else f"out {self.turns}"
        if not denied:
            self.hook("PostToolUse", {"tool_name": name, "tool_input": tool, "tool_response": output}, call)
        result = {"type": "tool_result", "tool_use_id": call, "content": output, "is_error": denied}
        self.add("user", [result], toolUseResult={"agentId": "a1"} if name == "Task" else output)
        answer = [{"type": "text", "text": f"turn {self.turns}"}]
        self.add("assistant", answer)
        say({"type": "assistant", "message": {"role": "assistant", "model": "claude-x", "content": answer},
             "session_id": self.id, "parent_tool_use_id": None})  # fmt: skip
        say({"type": "result", "subtype": "success", "is_error": False, "duration_ms": 1, "duration_api_ms": 1,
             "num_turns": 1, "session_id": self.id, "result": f"turn {self.turns}", "total_cost_usd": 0.0})  # fmt: skip


SECONDS = itertools.count()


def main() -> None:
    if "-v" in sys.argv or "--version" in sys.argv:
        print("2.1.999 (Claude Code)")
        return
    resumed = next((each.partition("=")[2] for each in sys.argv if each.startswith("--resume=")), "")
    if "--resume" in sys.argv:
        resumed = sys.argv[sys.argv.index("--resume") + 1]
    session = Session(resumed or str(uuid.uuid4()))
    for line in sys.stdin:
        frame = json.loads(line)
        if frame["type"] == "control_request":
            for event, matchers in (frame["request"].get("hooks") or {}).items():
                session.hooks[event] = [each for matcher in matchers for each in matcher["hookCallbackIds"]]
            say({"type": "control_response", "response": {
                "subtype": "success", "request_id": frame["request_id"], "response": {"commands": []}}})  # fmt: skip
        elif frame["type"] == "user":
            session.turn(frame["message"]["content"])


if __name__ == "__main__":
    main()
