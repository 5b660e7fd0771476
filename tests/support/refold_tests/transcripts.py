"""Sessions in two forms: the exchanges that a proxy captures of them, and the transcript that Claude Code would write.

The lines of a transcript have the members that the importer reads, as ENTRANCES.md describes real ones; no public
sample with a licence was found.
"""

from __future__ import annotations

import base64
import datetime as dt
import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from refold.agents.capture.exchange import Response, request_of
from refold.agents.capture.spool import SpooledExchange
from refold.agents.capture.turns import reply_of, turn_of
from refold_tests.corpora import members

BEGIN = 1_772_000_000_000_000
SECOND = 1_000_000


def text(said: str) -> dict[str, str]:
    """Return a block of text."""
    return {"type": "text", "text": said}


def user(said: str) -> dict[str, Any]:
    """Return a user's message."""
    return {"role": "user", "content": [text(said)]}


def call(identity: str, name: str = "Read", **given: Any) -> dict[str, Any]:
    """Return a block that calls a tool."""
    return {"type": "tool_use", "id": identity, "name": name, "input": given}


def result(identity: str, said: str) -> dict[str, Any]:
    """Return a message with a tool's result."""
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": identity, "content": said}]}


def sample_session(words: Sequence[str], asked: str = "what is in the log?") -> list[SpooledExchange]:
    """Return the turns of a conversation: each but the last calls a tool. The ids depend on the words alone."""
    messages: list[Any] = [user(asked)]
    turns = []
    first = 1 + sum(map(ord, asked)) * 10
    for number, word in enumerate(words):
        is_last = number == len(words) - 1
        content = [text(f"I say {word}."), *([] if is_last else [call(f"toolu_{word}", path=f"/{word}")])]
        turns.append(captured_turn(first + number, [*messages], content, f"msg_{word}"))
        messages += [{"role": "assistant", "content": content}, result(f"toolu_{word}", f"it is {word}")]
    return turns


def captured_turn(
    number: int, messages: Sequence[Any], content: Sequence[Any], reply_id: str = "", by: str = ""
) -> SpooledExchange:
    """Return a turn as a proxy's spool has it. number: of the second in which it began."""
    body = json.dumps({"model": "claude-x", "messages": messages}).encode()
    reply = {
        "id": reply_id or f"msg_{number}", "type": "message", "role": "assistant", "model": "claude-x",
        "content": content, "usage": {"input_tokens": 10, "output_tokens": 2},
    }  # fmt: skip
    answer = Response([], "HTTP/1.1", 200, [("content-type", "application/json")], 1)
    answer.add(json.dumps(reply).encode(), 2)
    request = request_of("POST", "http://h/v1/messages", "application/json", body)
    at = BEGIN + number * SECOND
    return SpooledExchange(Path("none"), at, "POST h/v1/messages", request, answer.answer(), None, 1.0, by)


def real_turns(archive: Path) -> list[SpooledExchange]:
    """Return the turns of a real session of Claude Code (papercomputeco/tapes, MIT); the first is another session."""
    files = members(archive, "recordings")
    found = []
    for number, turn in enumerate(sorted({name.partition("/")[0] for name in files if "/" in name})):
        request, meta = (json.loads(files[f"{turn}/{part}.json"]) for part in ("request", "meta"))
        asked = request_of("POST", request["url"], "application/json", base64.b64decode(request["body_b64"]))
        headers = [(name, value) for name, value in meta["response_headers"] if name != "content-encoding"]
        answer = Response([], "HTTP/1.1", meta["status"], headers, 1)
        answer.add(gzip.decompress(files[f"{turn}/response.sse"]), 2)
        at = BEGIN + number * SECOND
        found.append(SpooledExchange(Path("none"), at, "POST h/v1/messages", asked, answer.answer(), None, 1.0))
    return found


def transcript(session: str, turns: Iterable[SpooledExchange], agent: str = "") -> list[dict[str, Any]]:
    """Return the lines that Claude Code writes of a conversation: one for each block of a reply.

    Args:
        session: The session's id.
        turns: The turns of one conversation.
        agent: The id of the subagent that has it; "" for the session itself.
    """
    lines: list[dict[str, Any]] = []
    known = 0
    for exchange in turns:
        turn = turn_of(exchange.request)
        assert turn is not None
        reply = reply_of(turn.family, exchange.answer)
        assert reply is not None
        new = [each for each in turn.messages[known:] if each["role"] == "user"]
        known = len(turn.messages)
        (said,) = reply.messages
        made = [("user", each) for each in new]
        made += [
            ("assistant", {"id": reply.id, "role": "assistant", "model": "claude-x", "content": [block],
                           "usage": {"input_tokens": 10, "output_tokens": 2}})
            for block in said["content"]
        ]  # fmt: skip
        for kind, message in made:
            lines.append({
                "type": kind, "message": message, "uuid": f"{agent}{len(lines)}", "sessionId": session,
                "isSidechain": bool(agent), "timestamp": _time(exchange.at), "cwd": "/home/ana", "version": "2.1.219",
                **({"agentId": agent} if agent else {}),
            })  # fmt: skip
    return lines


def written(path: Path, lines: Iterable[Any]) -> Path:
    """Write a file of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def _time(at: int) -> str:
    return dt.datetime.fromtimestamp(at // SECOND, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
