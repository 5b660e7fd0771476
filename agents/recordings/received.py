"""Convert a run that was received as spans (agents/adapters/otlp) to a recording.

1. The run lists the spans of agents, which are in its steps, its actions and documents, as they were sent. The trace's
   document lists its other spans and its log records, which are documents. A log record that names a span is joined
   to it.
2. The spans become a conversation, by the rules for imported traces (importers/otlp.py), in any order.
3. The conversation becomes the entities that an import would make, in memory, and those a recording (imported.py).

So a run that is received and one that is imported from a file of the same spans are the same recording, but for the
id, and for the spans in its messages: here they hold only names of spans, because the documents have the whole, and
ids and times would make any two runs differ. Its steps are numbered by the spans that are there at the point that is
asked for; a late span may move them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import structs

from refold.agents.importers.conversation import import_conversation
from refold.agents.importers.file import ImportFile
from refold.agents.importers.json_lines import FileLimits
from refold.agents.importers.messages import text_of
from refold.agents.importers.model import Conversation
from refold.agents.importers.otlp import LogPart, SpanPart, Trace
from refold.agents.journal.record import Plain, Recording
from refold.agents.recordings.fields import Fields, Look, PartMissing
from refold.agents.recordings.imported import imported
from refold.agents.vault import ValueCipher
from refold.avro.errors import NotAnswerable
from refold.avro.observation import Kind, Link, Source

RECEIVED = "otlp-received"
"""The `imported_from` of a received run."""
_UNBOUNDED = FileLimits(conversation_bytes=1 << 62, items=1 << 40)
SPAN_DIGITS = 16
_SPAN_ID = re.compile(r"[0-9a-f]{16}")
_LOG_NAME = re.compile(r"log-[0-9a-f]{32}")
_DIGEST = re.compile(r"[0-9a-f]{32}")
KINDS = {"model": "step", "tool": "action"}
"""The type of entity that holds a span of this kind; other spans are documents."""
_BY_KEY = ("tool_outputs", "metadata")


def span_entity(trace_id: str, span_id: str) -> str:
    """Return the entity of a span; both ids are lower-case hex."""
    return f"document/span-{trace_id}-{span_id}"


def origin_entity(digest: str) -> str:
    """Return the entity of a resource and a scope; the digest is 32 hex digits."""
    return f"document/origin-{digest}"


def log_name(digest: str) -> str:
    """Return the name of a log record in its trace's list, and the id of its document.

    Args:
        digest: 32 hex digits, which depend on all of the record.
    """
    return f"log-{digest}"


def trace_entity(trace_id: str) -> str:
    """Return the entity that lists a trace's spans."""
    return f"document/trace-{trace_id}"


def is_span(number: str) -> bool:
    """Return whether the part of a step's id after `#` is a span's id, which a step of a received run has.

    Args:
        number: A step's number, or 16 hex digits.
    """
    return len(number) == SPAN_DIGITS


def is_received(run: Fields) -> bool:
    """Return whether a run was received as spans."""
    return bool(run.plain("imported_from") == RECEIVED)


def received(look: Look, run: Fields, run_id: str, vault: ValueCipher) -> Recording:
    """Return the recording of a received run, by the spans that are there at this point.

    Args:
        look: Looks up entities.
        run: The run's fields.
        run_id: The run's id, which is the trace's.
        vault: Decrypts contents.

    Raises:
        PartMissing: None of the trace's spans is there.
    """
    conversation = _conversation(_read_trace(look, run, run_id, vault), run_id)
    agent, outcome = run.plain("agent", conversation.agent), run.plain("outcome", "")
    entities = _MemoryEntities()
    import_conversation(replace(conversation, agent=agent, outcome=outcome), entities.observe)
    found = imported(entities.read, entities.fields(f"run/{run_id}"), run_id)
    # A conversation's times are those of its messages; spans that hold others began earlier and ended later.
    return structs.replace(found, started_at=run.plain("started_at", 0), ended_at=run.plain("ended_at", 0))


class ReceivedParts(NamedTuple):
    """The stored parts of a received run.

    Attributes:
        steps: How many steps its recording has.
        parts: The entities of its steps, actions, spans and log records.
    """

    steps: int
    parts: list[Fields]


def received_parts(look: Look, run: Fields, run_id: str, vault: ValueCipher) -> ReceivedParts:
    """Return the entities of a received run, for a search.

    Args:
        look: Looks up entities.
        run: The run's fields.
        run_id: The run's id.
        vault: Decrypts contents.
    """
    sent = _read_trace(look, run, run_id, vault)
    try:
        count = sum(each.role == "assistant" for each in _conversation(sent, run_id).messages)
    except NotAnswerable:  # the content is gone; how many calls of models there were is still known
        count = sum(kind == "model" for kind in sent.kinds.values())
    return ReceivedParts(count, [*sent.spans, *(each for each, _ in sent.logs)])


class _ReceivedTrace(NamedTuple):
    """The entities of a trace that are listed and exist.

    Attributes:
        kinds: The kind of each span, by its id.
        spans: The entities that hold the spans.
        origins: The documents of the spans' origins, by their digests.
        logs: The log records, each with the id of its span.
    """

    kinds: dict[str, str]
    spans: list[Fields]
    origins: dict[str, Fields]
    logs: list[tuple[Fields, str]]


def _read_trace(look: Look, run: Fields, run_id: str, vault: ValueCipher) -> _ReceivedTrace:
    listing = look([trace_entity(run_id)]).get(trace_entity(run_id))
    listed = {} if listing is None else listing.fields.get("fields", {})
    listed = {**listed, **run.plain("spans", {})}
    texts = {name: value for name, value in sorted(listed.items()) if isinstance(value, str)}
    kinds = {name: kind for name, kind in texts.items() if _SPAN_ID.fullmatch(name)}  # others wrote the rest
    logs = {name: span for name, span in texts.items() if _LOG_NAME.fullmatch(name)}
    places = {each: _place(run_id, each, kind) for each, kind in kinds.items()}
    names = [*places.values(), *(f"document/{each}" for each in logs)]
    views = look(names) if names else {}
    found = {name: Fields(views[name], vault) for name in names if name in views}
    spans = [found[name] for name in places.values() if name in found]
    digests = {digest for each in spans if (digest := _digest(each))}
    origins = look(map(origin_entity, digests)) if digests else {}
    return _ReceivedTrace(
        kinds, spans,
        {each: Fields(origins[name], vault) for each in digests if (name := origin_entity(each)) in origins},
        [(found[name], span) for each, span in logs.items() if (name := f"document/{each}") in found],
    )  # fmt: skip


def _place(run_id: str, span_id: str, kind: str) -> str:
    """Return the entity that holds a span."""
    return f"{KINDS[kind]}/{run_id}#{span_id}" if kind in KINDS else span_entity(run_id, span_id)


def _is_document(holder: Fields) -> bool:
    return holder.entity.startswith("document/")


def _digest(holder: Fields) -> str:
    """Return the digest of a span's origin; empty if it has none."""
    found = holder.opened_map("fields").get("origin") if _is_document(holder) else holder.plain("span_origin")
    return found if isinstance(found, str) and _DIGEST.fullmatch(found) else ""


def _conversation(sent: _ReceivedTrace, run_id: str) -> Conversation:
    trace = Trace(run_id)
    origins: dict[str, Any] = {digest: each.opened_map("fields") for digest, each in sent.origins.items()}
    for each in sent.spans:
        span: Any = each.opened_map("fields").get("span") if _is_document(each) else each.opened("span")
        if isinstance(span, Mapping):
            origin = origins.get(_digest(each), {})
            scope = origin.get("scope")
            name = scope.get("name") if isinstance(scope, Mapping) else None
            trace.add(SpanPart(run_id, span, origin.get("resource"), text_of(name)), each.entity)
    if not trace.spans:
        raise PartMissing("none of its spans is there at this point")
    for each, span_id in sent.logs:
        log: Any = each.opened_map("fields").get("log")
        if isinstance(log, Mapping):
            trace.add(LogPart(run_id, span_id, log), each.entity)
    return replace(trace.conversation(ImportFile(Path(run_id), limits=_UNBOUNDED), keeps_spans=False), run=run_id)


class _MemoryEntities:
    """The entities of one conversation, whose observations come in order, and each once."""

    def __init__(self) -> None:
        self._entities: dict[str, dict[str, Any]] = {}
        self._count = 0

    def observe(
        self, entity: str, patch: Mapping[str, object] | None = None, *, source: Source, observed_at: int,
        causes: Sequence[str] = (), link: Link | None = None, kind: Kind = "assert",
    ) -> str:  # fmt: skip
        """Fold an observation, and return an id."""
        fields = self._entities.setdefault(entity, {})
        given: Mapping[str, Any] = patch or {}
        for name, value in given.items():
            if name == "messages":
                fields.setdefault(name, []).extend(value)
            elif name in _BY_KEY and name in fields:
                fields[name] = {**fields[name], **value}
            else:
                fields[name] = value
        self._count += 1
        return f"{self._count:064x}"

    def read(self, names: list[str]) -> list[_MemoryFields]:
        """Return entities."""
        return [self.fields(name) for name in names]

    def fields(self, entity: str) -> _MemoryFields:
        """Return the fields of an entity."""
        return _MemoryFields(self._entities[entity])


class _MemoryFields:
    """The fields of an entity that is only in memory."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields

    def plain(self, field: str, default: Any = None) -> Any:
        """As `Fields.plain`."""
        return self._fields.get(field, default)

    def opened(self, field: str) -> Plain:
        """As `Fields.opened`."""
        return self._fields.get(field)

    def every(self, field: str) -> list[Plain]:
        """As `Fields.every`."""
        return list(self._fields.get(field, ()))
