"""The interface of an importer, and its results: recorded conversations, and how to interpret their tools."""

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
"""2000-01-01T00:00:00Z, microseconds. Observations need a time to be ordered by; no field shows this one."""


class Observe(Protocol):
    """A log's `observe`, as far as importers use it. Times are microseconds; the returned id is lower-case hex."""

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
    """A score that came with a conversation.

    Attributes:
        fields: Further fields of its evaluation entity.
        of_replies: Whether the assistant's words were judged as well as its write calls.
    """

    score: float
    passed: bool
    fields: Mapping[str, Value]
    of_replies: bool = False


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation, of at least one message.

    Attributes:
        run: The run's id, from `ImportFile.run_of`.
        place: The place for error messages, as FILE:LINE.
        input, output: What the run was started with and what it returned, as JSON values. Without an output, the last
            reply is the output.
        outcome: The outcome; empty if the source does not state it.
        start: When it began, in microseconds since 1970; None if the source does not say so.
        default_start: The time that orders conversations without any time.
        grows: Whether the source is an agent's own transcript, which may hold more of it later. Then no observation of
            a part says how long the whole is, and turns are matched with those of other records of the session
            (recordings/same_turns.py).
        usage: Further fields of the run's end, such as input_tokens.
        parent: The id of the run that started this one.
        children: The conversations that its calls started, each with the id of the call, or an empty string if the call
            is not known. They are imported after it.
        effect_of: Returns whether a tool reads or writes; None if that is not known.
        documents_of: Returns the documents that a call's parsed result describes.
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

    Attributes:
        name: The value of --format.
        summary: One line of help.
        recognise: Describes a JSON value in a few words if it is of this format, else returns an empty string. It is
            called with the first values of a file and must not raise.
        read: Yields the conversations of a file, the same each time, as a stream if the file is one. It raises
            InputError, which names file and line.
        keys: The keys that --map may rename.
    """

    name: str
    summary: str
    recognise: Callable[[Value], str]
    read: Callable[[ImportFile], Iterator[Conversation]]
    keys: frozenset[str] = frozenset()
