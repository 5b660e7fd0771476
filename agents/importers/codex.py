"""Import rollouts of Codex: JSON lines {timestamp, type, payload}, one file per session.

    session_meta    the session: its id, version, folder and instructions, in the run's metadata
    turn_context    the model and the settings of a turn
    response_item   messages to and from the model, its calls and their results: items of OpenAI's Responses API
    event_msg       what was shown to the user
    compacted       a summary that replaces everything before it

Messages are built from response_items (see responses_items.py). All other lines are stored unchanged. Lines and items
of a type that is not in this list are also counted. In rollouts from before mid-2025 the lines are the items
themselves, after a first line {id, timestamp, instructions}; these items have no times.

A session's run id depends only on the session's id. So importing a session again after it has grown adds only what is
new. A session that another session started is its child.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from refold.agents.importers.file import ImportFile, run_id
from refold.agents.importers.json_lines import parse_json
from refold.agents.importers.messages import record, text_at
from refold.agents.importers.model import Conversation, Importer
from refold.agents.importers.responses_items import Turns
from refold.agents.importers.times import own_time
from refold.avro.errors import InputError
from refold.avro.observation import Value

FORMAT = "codex"
KEPT = frozenset({"turn_context", "event_msg", "compacted"})
PARENT = ("source", "subagent", "thread_spawn", "parent_thread_id")


def conversations(file: ImportFile) -> Iterator[Conversation]:
    """Yield the one session of a file.

    Raises:
        InputError: The file is not of this format, or a line is damaged; the message names file and line.
    """
    turns, model, first = Turns(), "", ""
    meta: dict[str, Any] = {}
    is_session = False
    budget = file.budget()
    for place, text in file.text_lines():
        budget.take(text, place)
        line = parse_json(text, place, file.limits)
        first = first or place
        if not isinstance(line, Mapping):
            raise InputError(f"{place}: is not an object; a line of a rollout is {{timestamp, type, payload}}")
        payload, kind, at = line.get("payload"), line.get("type"), own_time(line.get("timestamp"))
        if _is_old_head(line) and not meta:
            meta, is_session = dict(line), True
        elif not isinstance(payload, Mapping) and ("role" in line or isinstance(kind, str)) and "timestamp" not in line:
            is_session = True
            if unknown := turns.add(line, place, None):
                file.keep(f"item of type {unknown}")
        elif kind == "session_meta" and isinstance(payload, Mapping):
            is_session = True
            meta = meta or dict(payload)
        elif kind == "response_item" and isinstance(payload, Mapping):
            is_session = True
            if unknown := turns.add(payload, place, at):
                file.keep(f"item of type {unknown}")
        else:
            if text_at(line, "type") not in KEPT:
                file.keep(f"line of type {kind}" if isinstance(kind, str) else "line without a type")
            if kind == "turn_context" and isinstance(payload, Mapping):
                model = model or text_at(payload, "model")
            turns.keep(record(_name(kind, payload), line, at))
    messages = turns.messages()
    if not is_session:
        raise InputError(f"{first}: no line of the file is of a Codex rollout; name its format with --format")
    if not messages:
        messages = [record("session_meta", meta, own_time(meta.get("timestamp")))]
    session = meta.get("id")
    parent: Any = meta
    for key in PARENT:
        parent = parent.get(key) if isinstance(parent, Mapping) else None
    questions = (each.text for each in messages if each.role == "user" and not each.is_result)
    contents: list[Value] = [each.content for each in messages]
    yield Conversation(
        run=file.run_of({FORMAT: session} if isinstance(session, str) else contents),
        messages=messages,
        agent=FORMAT,
        imported_from=FORMAT,
        place=first,
        start=own_time(meta.get("timestamp")),
        model=model,
        version=text_at(meta, "cli_version"),
        input=next(questions, None),
        metadata={key: value for key, value in meta.items() if value is not None},
        grows=True,
        parent=run_id({FORMAT: parent}) if isinstance(parent, str) else "",
    )


def recognised(value: Value) -> str:
    """Describe a value if it is a line of a rollout; return an empty string if it is not."""
    if not isinstance(value, Mapping):
        return ""
    known = text_at(value, "type") in {"session_meta", "response_item", *KEPT}
    is_line = known and isinstance(value.get("payload"), Mapping) and "timestamp" in value
    return "a line of a Codex rollout" if is_line or _is_old_head(value) else ""


def _is_old_head(line: Mapping[str, Any]) -> bool:
    return "type" not in line and "instructions" in line and isinstance(line.get("id"), str) and "timestamp" in line


def _name(kind: Value, payload: Value) -> str:
    """Return the name under which a line is stored, such as "event_msg token_count"."""
    inner = payload.get("type") if isinstance(payload, Mapping) and kind == "event_msg" else None
    return " ".join(each for each in (kind, inner) if isinstance(each, str)) or "line"


IMPORTER = Importer(name=FORMAT, summary="rollouts of Codex", recognise=recognised, read=conversations)
