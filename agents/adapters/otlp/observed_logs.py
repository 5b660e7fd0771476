"""A log record becomes observations, each a function of that record alone.

    document/log-<digest>     every record, unchanged, with its resource and scope; linked `of` the trace that it names
    document/trace-<trace>    the name of the record, with the id of its span, if it names a trace
    step/<trace>#<span>       if it holds an answer of a model: its text and the calls that it asks for
    run/<trace>               if it holds messages of a model: what was asked first, and answered last

1. Identity. The digest covers the record, its resource and its scope, so a record that is sent again adds nothing, and
   two records that differ in anything are two. States and root depend only on the set of spans and records.
2. A record may come before its span, or without it for ever. A span of a call of a model states nothing about an answer
   that it does not have, so the order does not matter.
3. A record that names no span is kept as a document. It is listed by its trace if it names one.

The messages join those of the span when the run is read (recordings/received.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from refold.agents.adapters.otlp.observed import DIGEST_CHARACTERS, Patch, Stated, answer_of, observe_all, present
from refold.agents.adapters.otlp.requests import SentLog
from refold.agents.importers.messages import parse_messages
from refold.agents.importers.model import NO_TIME_START, Observe
from refold.agents.importers.spans import (
    MESSAGE_LOGS,
    messages_of_log,
    name_of_log,
    time_of_log,
    values_of_log,
)
from refold.agents.recordings.received import RECEIVED, log_name, trace_entity
from refold.avro.canonical import JsonText, json_text
from refold.avro.observation import Link


def observe_log(sent: SentLog, observe: Observe) -> None:
    """Observe one log record.

    Args:
        sent: From `requests.decode_logs`.
        observe: A log's `observe`.

    Raises:
        InputError: A value of the record cannot be observed.
    """
    service = sent.resource.service
    observe_all(_stated(sent, service), service, sent.trace_id, "", observe)


def _stated(sent: SentLog, agent: str) -> Iterator[Stated]:
    log = sent.log
    resource, scope, own_text = sent.resource.json, sent.scope.json, JsonText(json_text(log))
    # The canonical JSON of all three.
    whole = f'{{"log":{own_text.text},"resource":{resource.text},"scope":{scope.text}}}'
    name = log_name(hashlib.sha256(whole.encode()).hexdigest()[:DIGEST_CHARACTERS])
    own, at = f"document/{name}", time_of_log(log) or NO_TIME_START
    yield Stated(own, at, {"kind": "log", "fields": {"resource": resource, "scope": scope, "log": own_text}})
    if not sent.trace_id:
        return
    yield Stated(trace_entity(sent.trace_id), at, {"kind": "trace", "fields": {name: sent.span_id}})
    yield Stated(own, at, link=Link("of", trace_entity(sent.trace_id)))
    if sent.span_id and name_of_log(log) in MESSAGE_LOGS:
        yield from _of_messages(sent, log, at, agent)


def _of_messages(sent: SentLog, log: Mapping[str, Any], at: int, agent: str) -> Iterator[Stated]:
    asked, answered = messages_of_log(log)
    is_first = not values_of_log(log).get("index")  # of several choices the first is the step's, as in a span
    answer = answer_of(parse_messages(answered, name_of_log(log))) if answered and is_first else {}
    said: Patch = {"agent": agent, "imported_from": RECEIVED}
    said |= present(
        input=next((each["content"] for each in asked if each["role"] == "user"), None), output=answer.get("message")
    )
    yield Stated(f"run/{sent.trace_id}", at, said)
    if answer:
        step = f"step/{sent.trace_id}#{sent.span_id}"
        yield Stated(step, at, {"run": sent.trace_id, "agent": agent, **answer})
