"""What an importer is, and what it hands over: recorded conversations, and how their tools are to be understood."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from refold.agents.importers.documents import Document, documents
from refold.agents.importers.file import ImportFile
from refold.agents.importers.messages import Message, ToolCall
from refold.avro.observation import Kind, Link, Source, Value

Effect: TypeAlias = Literal["read", "write"]
NO_TIME_START = 946_684_800_000_000
"""2000-01-01T00:00:00Z, microseconds: observations need a time to be put in order by, and nothing shows this one."""


class Observe(Protocol):
    """A log's `observe`, as far as an importer uses it. Microseconds in, the id in lower-case hex out."""

    def __call__(
        self,
        entity: str,
        patch: Mapping[str, object] | None = None,
        *,
        source: Source,
        observed_at: int,
        causes: Sequence[str] = (),
        link: Link | None = None,
        kind: Kind = "assert",
    ) -> str: ...


@dataclass(frozen=True, slots=True)
class Judgement:
    """A score that came with a conversation. `fields`: more fields of its evaluation entity.

    of_replies: whether the assistant's words were judged too, beside what its write calls did.
    """

    score: float
    passed: bool
    fields: Mapping[str, Value]
    of_replies: bool = False


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation, of one message or more.

    run: its run's id, of `ImportFile.run_of`. place: FILE:LINE, for messages. input: what it was started with, output:
    what it came to, any JSON value; without an output the last reply is it.
    outcome: empty where the source says nothing of it.
    start: microseconds, where the source says when it began; default_start orders what has no time at all.
    grows: the source may hold more of it later; then nothing that is observed of a part says how long the whole is.
    usage: more fields of the run's end, such as input_tokens.
    parent: the run that this one was started by. children: conversations that its calls started, each with the id of
    the call, or an empty text where that is not known; they are imported after it.
    effect_of: whether a tool reads or writes, None where that is not known.
    documents_of: the documents that a call's parsed result speaks of.
    """

    run: str
    messages: Sequence[Message]
    agent: str
    imported_from: str
    place: str = ""
    default_start: int = NO_TIME_START
    start: int | None = None
    model: str = ""
    version: str = ""
    title: str = ""
    input: Value = None
    output: Value = None
    outcome: str = ""
    metadata: Mapping[str, Value] = field(default_factory=dict)
    usage: Mapping[str, Value] = field(default_factory=dict)
    judgement: Judgement | None = None
    grows: bool = False
    parent: str = ""
    children: Iterable[tuple[str, Conversation]] = ()
    effect_of: Callable[[str], Effect | None] = lambda tool: None
    documents_of: Callable[[ToolCall, Value], Iterable[Document]] = documents


@dataclass(frozen=True, slots=True)
class Importer:
    """A format of recorded conversations, and how it is read.

    name: what --format calls it. summary: a line of help. recognise: what a JSON value of such a file is, in a few
    words, or an empty text; it is given the first values of a file and raises nothing. read: the conversations of a
    file, the same each time, as a stream where the file is one; InputError names file and line. keys: those that --map
    may give another name.
    """

    name: str
    summary: str
    recognise: Callable[[Value], str]
    read: Callable[[ImportFile], Iterator[Conversation]]
    keys: frozenset[str] = frozenset()
