"""The keys by which a turn is the same turn in every record of its session.

A provider gives each reply and each tool call an id, which is in the reply as it crosses the wire and in the transcript
that the agent writes. A key is a hash, so it says nothing of a turn whose content was removed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from refold.agents.importers.messages import Message, ToolCall, text_at

SYNTHETIC = "<synthetic>"
"""The model of a message that an agent wrote itself, such as an error, in a transcript of Claude Code."""


class TranscriptTurns(NamedTuple):
    """The turns of an imported run.

    Attributes:
        keys: The keys of the turns, by the number of their step.
        caller: The action that began the run, if any, as TYPE/ID.
        calls: The action of each tool call, by the call's id.
    """

    run: str
    keys: Mapping[int, str]
    caller: str = ""
    calls: Mapping[str, str] = {}


def turn_key(reply_id: str, calls: Iterable[ToolCall], text: str, before: str = "") -> str:
    """Return the id of the `turn` entity of a reply; "" if nothing distinguishes the reply from others.

    Ids of tool calls are the same in every record, also in a redacted one. A reply without them is known by its own id
    and its text; without an id, by its text and the turn before.

    Args:
        reply_id: The provider's id of the reply, if known.
        calls: Its tool calls.
        text: Its text.
        before: The key of the turn before, if known.
    """
    named = sorted((each.call_id, each.tool) for each in calls if each.call_id)
    words = "".join(text.split())
    if not (named or reply_id or before):
        return ""
    parts = ["calls", named] if named else ["reply", reply_id, words] if reply_id else ["after", before, words]
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:32]


def keys_of(messages: Sequence[Message]) -> dict[int, str]:
    """Return the key of each turn of a transcript, by the number of its step. A reply that no model wrote has none."""
    keys: dict[int, str] = {}
    before = ""
    for number, each in enumerate((each for each in messages if each.role == "assistant"), start=1):
        if each.extra.get("model") != SYNTHETIC:
            keys[number] = before = turn_key(text_at(each.extra, "id"), each.calls, each.text or "", before)
    return keys


def actions_of(run: str, messages: Iterable[Message]) -> dict[str, str]:
    """Return the action of each tool call of a transcript that is imported as a run, by the call's id."""
    replies = (each for each in messages if each.role == "assistant")
    return {
        call.call_id: f"action/{run}#{number}.{k}"
        for number, reply in enumerate(replies, start=1) for k, call in enumerate(reply.calls, start=1) if call.call_id
    }  # fmt: skip
