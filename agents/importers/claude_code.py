"""Import sessions of Claude Code: JSON lines, one file per session, with the files of its subagents next to it.

    <id>.jsonl                                the session
    <id>/subagents/agent-<agent>.jsonl        each subagent's own lines
    <id>/subagents/agent-<agent>.meta.json    {"toolUseId": ...}: the call of the session that started it

1. Lines are read in order. `user` and `assistant` lines are messages. The model's answer is written as several lines,
   one per content block, possibly with results of its first calls between them. Lines with the same message id become
   one message, at the position of the first of them.
2. Each subagent is a separate conversation, and a child of the session. Subagents are found in the files next to the
   session, and in lines of the session's own file (`isSidechain`), as older versions write them. The call that started
   a subagent is known from its meta file, from the result that names the subagent, or from the subagent's first
   message, which equals the call's prompt.
3. The other members of a message's line are stored in the message's `extra`, except those that every line repeats
   (cwd, version and the like), which are stored in the run's metadata. Lines of all other types are stored unchanged
   and counted.

A session's run id depends only on the session's id. So importing a session again after it has grown adds only what is
new.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from refold.agents.importers.file import ImportFile, run_id
from refold.agents.importers.json_lines import parse_json
from refold.agents.importers.messages import Message, parse_messages, record, text_at
from refold.agents.importers.model import Conversation, Importer
from refold.agents.importers.times import own_time
from refold.avro.errors import InputError
from refold.avro.observation import Value

FORMAT = "claude-code"
KNOWN = frozenset({"user", "assistant", "system", "summary"})
REPEATED = ("sessionId", "version", "cwd", "gitBranch", "userType", "entrypoint", "agentId", "slug")
META_BYTES_MAX = 1 << 20


def conversations(file: ImportFile) -> Iterator[Conversation]:
    """Yield the session of a file, with its subagents as children.

    A file that holds one subagent and no lines of a session yields that subagent.

    Raises:
        InputError: The file is not of this format, or a line is damaged; the message names file and line.
    """
    main = _Lines("", "", False)
    side: dict[str, _Lines] = {}
    owners: dict[str, str] = {}
    known, first = False, ""
    budget = file.budget()
    for place, text in file.text_lines():
        budget.take(text, place)
        given = parse_json(text, place, file.limits)
        line: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
        known = known or text_at(line, "type") in KNOWN
        first = first or place
        group = main
        if line.get("isSidechain") is True:
            owner = _owner(line, owners)
            group = side.setdefault(owner, _Lines(text_at(line, "sessionId"), owner, True))
        group.add(given, place, file)
    if not known:
        raise InputError(f"{first}: no line of the file is of a Claude Code session; name its format with --format")
    if not main.made and len(side) == 1:  # a subagent's own file
        [only] = side.values()
        yield only.conversation(file, _meta(file.path, file), [])
        return
    session = main.session or next((each.session for each in side.values()), "")
    for each in side.values():
        each.session = session
    main.session = session
    yield main.conversation(file, {}, _Children(file, main, list(side.values())))


def recognised(value: Value) -> str:
    """Describe a value if it is a line of a session; return an empty string if it is not."""
    if not isinstance(value, Mapping) or text_at(value, "type") not in KNOWN:
        return ""
    is_one = "leafUuid" in value or (isinstance(value.get("sessionId"), str) and "uuid" in value)
    return "a line of a Claude Code session" if is_one else ""


class _Children:
    """The conversations of a session's subagents, each read when the iteration reaches it."""

    def __init__(self, file: ImportFile, main: _Lines, side: list[_Lines]) -> None:
        self._file = file
        self._main = main
        self._side = side

    def __iter__(self) -> Iterator[tuple[str, Conversation]]:
        for each in self._side:
            yield self._main.call_of(each), each.conversation(self._file, {}, [])
        for path in _files_of(self._file.path):
            own = ImportFile(path, limits=self._file.limits, unknown=self._file.unknown, left_out=self._file.left_out)
            meta, call = _meta(path, own), ""
            if isinstance(meta.get("toolUseId"), str):
                call = meta["toolUseId"]
            for conversation in conversations(own):
                yield call or self._main.calls.get(path.name.split(".")[0].removeprefix("agent-"), ""), conversation


@dataclass(slots=True)
class _OpenMessage:
    """An unfinished message, which may continue on later lines.

    Attributes:
        message: Its content so far.
        lines: The other members of each of its lines.
        place: The place of the first line, as FILE:LINE.
    """

    message: dict[str, Any]
    lines: list[dict[str, Any]]
    place: str


@dataclass(slots=True)
class _Lines:
    """The lines of one agent.

    Attributes:
        made: Its messages, in order.
        calls: The id of the call that started a subagent, by the subagent's id.
        prompts: The id of a call, by its prompt.
        constant: The members that every line repeats.
        opened: The messages that later lines may continue, by message id.
    """

    session: str
    agent: str
    is_side: bool
    made: list[_OpenMessage | Message] = field(default_factory=list)
    calls: dict[str, str] = field(default_factory=dict)
    prompts: dict[str, str] = field(default_factory=dict)
    constant: dict[str, Any] = field(default_factory=dict)
    title: str = ""
    opened: dict[str, _OpenMessage] = field(default_factory=dict)

    def add(self, given: Value, place: str, file: ImportFile) -> None:
        """Add one line."""
        kind = given.get("type") if isinstance(given, Mapping) else None
        if not isinstance(given, Mapping) or not isinstance(kind, str) or kind not in KNOWN:
            name = f"line of type {kind}" if isinstance(kind, str) else "line without a type"
            file.keep(name)
            at = own_time(given.get("timestamp")) if isinstance(given, Mapping) else None
            self.made.append(record(kind if isinstance(kind, str) else "line", given, at))
            return
        self.session = self.session or text_at(given, "sessionId")
        for key in REPEATED:
            if key in given:
                self.constant.setdefault(key, given[key])
        message = given.get("message")
        if kind in ("user", "assistant") and isinstance(message, Mapping):
            self._message(given, dict(message), place)
            return
        if kind == "summary":
            self.title = text_at(given, "summary") or self.title
        elif kind != "system":
            file.keep(f"{kind} line without a message")
        text = given.get("content")
        at = own_time(given.get("timestamp"))
        extra = {key: value for key, value in given.items() if key != "content"}
        if kind == "system" and isinstance(text, str):
            self.made.append(Message(role="system", content=text, at=at, extra=extra))
        else:
            self.made.append(record(str(kind), given, at))

    def _message(self, line: Mapping[str, Any], message: dict[str, Any], place: str) -> None:
        around = {
            key: value
            for key, value in line.items()
            if key not in ("message", "type", "isSidechain") and self.constant.get(key) != value
        }
        identity = message.get("id")
        before = self.opened.get(identity) if isinstance(identity, str) and line["type"] == "assistant" else None
        if before is not None and isinstance(message.get("content"), list):
            before.lines.append(around)
            before.message |= {**message, "content": [*before.message["content"], *message["content"]]}
        else:
            said = _OpenMessage({"role": line["type"], **message}, [around], place)
            self.made.append(said)
            if isinstance(identity, str) and isinstance(message.get("content"), list):
                self.opened[identity] = said
        result = line.get("toolUseResult")
        agent = result.get("agentId") if isinstance(result, Mapping) else None
        for block in message["content"] if isinstance(message.get("content"), list) else ():
            if not isinstance(block, Mapping):
                continue
            if isinstance(agent, str) and isinstance(block.get("tool_use_id"), str):
                self.calls[agent] = block["tool_use_id"]
            inputs = block.get("input")
            if (
                isinstance(inputs, Mapping)
                and isinstance(inputs.get("prompt"), str)
                and isinstance(block.get("id"), str)
            ):
                self.prompts.setdefault(inputs["prompt"], block["id"])

    def call_of(self, child: _Lines) -> str:
        """Return the id of the call that started a subagent whose lines are in this file; empty if it is unknown."""
        first = next((each.message.get("content") for each in child.made if isinstance(each, _OpenMessage)), None)
        return self.calls.get(child.agent, "") or (self.prompts.get(first, "") if isinstance(first, str) else "")

    def conversation(self, file: ImportFile, meta: Mapping[str, Any], children: Any) -> Conversation:
        """Return the messages as a conversation.

        Args:
            file: The file, which assigns the run id.
            meta: The content of a subagent's meta file; empty for a session.
            children: The conversations that this one's calls started, each with the call's id.
        """
        messages: list[Message] = []
        model, place = "", ""
        for each in self.made:
            if isinstance(each, Message):
                messages.append(each)
                continue
            place = place or each.place
            model = model or text_at(each.message, "model")
            time = {"timestamp": each.lines[0]["timestamp"]} if "timestamp" in each.lines[0] else {}
            around = {"line": each.lines[0]} if len(each.lines) == 1 else {"lines": each.lines}
            messages += parse_messages([{**each.message, **time, **around}], each.place)
        identity: dict[str, Value] = {FORMAT: self.session, **({"agent": self.agent} if self.is_side else {})}
        messages = messages or [record("session", self.constant)]
        questions = (each.text for each in messages if each.role == "user" and not each.is_result)
        return Conversation(
            run=file.run_of(identity),
            messages=messages,
            agent=FORMAT,
            imported_from=FORMAT,
            place=place or file.shown,
            model=model,
            version=text_at(self.constant, "version"),
            title=self.title,
            input=next(questions, None),
            metadata={**self.constant, **({"meta": dict(meta)} if meta else {})},
            grows=True,
            parent=run_id({FORMAT: self.session}) if self.is_side else "",
            children=children,
        )


def _owner(line: Mapping[str, Any], owners: dict[str, str]) -> str:
    """Return the subagent that a line belongs to: its id, or the id of the line that its chain begins with."""
    own, before = text_at(line, "uuid"), text_at(line, "parentUuid")
    found = text_at(line, "agentId") or owners.get(before) or own or "subagent"
    owners[own] = found
    return found


def _files_of(path: Path) -> list[Path]:
    """Return the files of a session's subagents, sorted. Symbolic links are skipped."""
    name = path.name.removesuffix(".gz")
    if not name.endswith(".jsonl"):
        return []
    folder = path.parent / name.removesuffix(".jsonl") / "subagents"
    found = [*folder.glob("agent-*.jsonl"), *folder.glob("agent-*.jsonl.gz")]
    return sorted(each for each in found if each.is_file() and not each.is_symlink())


def _meta(path: Path, file: ImportFile) -> Mapping[str, Any]:
    """Return the content of the meta file next to a subagent's file; {} if there is none."""
    beside = path.parent / f"{path.name.removesuffix('.gz').removesuffix('.jsonl')}.meta.json"
    if not beside.is_file() or beside.is_symlink():
        return {}
    try:
        with beside.open("rb") as stream:
            data = stream.read(META_BYTES_MAX + 1)
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{beside}: cannot be read: {error}") from None
    if len(data) > META_BYTES_MAX:
        raise InputError(f"{beside}: is longer than {META_BYTES_MAX:,} bytes, and no subagent's meta file")
    found = parse_json(text, f"{beside}:1", file.limits)
    return found if isinstance(found, Mapping) else {}


IMPORTER = Importer(
    name=FORMAT,
    summary="sessions of Claude Code, with the subagents next to them",
    recognise=recognised,
    read=conversations,
)
