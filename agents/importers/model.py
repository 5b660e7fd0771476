"""What a format's reader hands over: one recorded conversation, and how its tools are to be understood."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from refold.agents.importers.documents import Document, documents
from refold.agents.importers.messages import Call, Message
from refold.avro.canonical import json_text
from refold.avro.observation import Kind, Link, Source, Value

Effect: TypeAlias = Literal["read", "write"]


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
    """One conversation. `run` is `run_of` its messages; `input` what it was started with, any JSON value.

    start: microseconds, where the source says when it began; default_start where nothing in it has a time.
    effect_of: whether a tool reads or writes, None where that is not known.
    documents_of: the documents that a call's parsed result speaks of.
    """

    run: str
    messages: Sequence[Message]
    agent: str
    imported_from: str
    default_start: int
    start: int | None = None
    model: str = ""
    input: Value = None
    metadata: Mapping[str, Value] = field(default_factory=dict)
    judgement: Judgement | None = None
    effect_of: Callable[[str], Effect | None] = lambda tool: None
    documents_of: Callable[[Call, Value], Iterable[Document]] = documents


def run_of(messages: Value) -> str:
    """A run's id: the first 32 hex digits of the SHA-256 of the canonical JSON of its messages."""
    return hashlib.sha256(json_text(messages).encode()).hexdigest()[:32]
