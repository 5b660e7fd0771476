"""The kernel's decoder of OTLP against Python's: the same spans, or the request is left to Python."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from refold.agents.adapters.otlp.requests import PROTOBUF, SentSpan, decode
from refold.avro.errors import InputError
from refold.avro.kernel import find_kernel
from refold_tests.both_folds import switched
from refold_tests.damaged_otlp import damaged_bodies, whole
from refold_tests.otlp_requests import TRACE, as_protobuf, request, span

DAMAGED = 500 * int(os.environ.get("REFOLD_FAULT_ROUNDS", "6"))
TEXTS = ["", "\u00e9\U0001f600", "".join(map(chr, range(0x80))), "\u2028 \ud7ff"]
VALUES: list[dict[str, Any]] = [
    *({"stringValue": each} for each in TEXTS), {"boolValue": False}, {"boolValue": True}, {"intValue": "0"},
    {"intValue": "-7"}, {"intValue": str(2**63 - 1)}, {"intValue": str(-(2**63))},
    *({"doubleValue": each} for each in (0.0, -0.0, 3.0, -2.0**63, 2.0**63, 0.1, -1234.5678, 1e-4, 1e14 + 0.5,
                                         "NaN", "Infinity", "-Infinity")),
    *({"bytesValue": each} for each in ("", "AA==", "AAE=", "AAEC", "/+8A")), {"arrayValue": {}}, {"kvlistValue": {}},
    {},
    {"kvlistValue": {"values": [{"key": "k", "value": {"arrayValue": {"values": [{"doubleValue": 3.0}, {}]}}}, {}]}},
]  # fmt: skip
UNUSUAL: list[dict[str, Any]] = [{"doubleValue": each} for each in (1e300, 1e15 + 0.5, -1.5e-7, 5e-324, 2.0**64)]


def spans(body: bytes) -> Any:
    """What the kernel makes of a body."""
    kernel = find_kernel().kernel
    assert kernel is not None
    return kernel.spans_of(body)


def compare(body: bytes) -> bool:
    """Compare both. Returns whether the kernel decoded it."""
    found = spans(body)
    try:
        with switched(on=False):
            wanted, rejected = decode(body, PROTOBUF)
    except InputError:
        assert found is None
        return False
    if found is not None:
        assert [*_flat(found[0])] == [_texts(each) for each in wanted]
        assert found[1] == rejected
    return found is not None


def _flat(scopes: Any) -> Iterator[tuple[str, ...]]:
    for resource, scope, sent in scopes:
        yield from ((*each[:2], resource, scope, each[2]) for each in sent)


def _texts(sent: SentSpan) -> tuple[str, ...]:
    return sent.trace_id, sent.span_id, *(each.json.text for each in (sent.resource, sent.scope, sent.span))


def body_with(values: list[dict[str, Any]]) -> bytes:
    """A request whose spans, events, links, scope and resource have all these values, and each field."""
    attributes = [{"key": f"k{k}", "value": each} for k, each in enumerate(values)]
    more: dict[str, Any] = {
        "kind": 3, "flags": 257, "traceState": "a=b", "status": {"code": 2, "message": "no \"quotes\""},
        "events": [{"name": "e", "timeUnixNano": "1", "attributes": attributes, "droppedAttributesCount": 1}, {}],
        "links": [{"traceId": "", "spanId": "", "attributes": attributes, "flags": 1, "traceState": "s"}, {}],
        "droppedAttributesCount": 1, "droppedEventsCount": 2, "droppedLinksCount": 3,
    }  # fmt: skip
    whole_span = span(1, {}, parent=2, **more) | {"attributes": attributes}
    bare = {"traceId": TRACE, "spanId": f"{3:016x}", "status": {}}
    tree = json.loads(request(whole_span, bare, {"name": "without ids"}))
    [of_resource] = tree["resourceSpans"]
    of_resource |= {"resource": {"attributes": attributes, "droppedAttributesCount": 4}, "schemaUrl": "https://a"}
    scope = {"name": "n", "version": "1", "attributes": attributes, "droppedAttributesCount": 5}
    of_resource["scopeSpans"][0] |= {"scope": scope, "schemaUrl": "https://b"}
    tree["resourceSpans"].append({"scopeSpans": [{"spans": [bare]}, {"spans": []}]})
    return as_protobuf(json.dumps(tree).encode())


def test_requests_of_real_emitters_are_decoded() -> None:
    bodies = [each.data for each in whole() if each.content_type == PROTOBUF and each.signal.name == "spans"]
    assert bodies
    assert all(compare(each) for each in bodies)


def test_each_field_and_value_is_written_as_by_python() -> None:
    assert compare(body_with(VALUES))
    assert spans(b"") == ([], 0)


@pytest.mark.parametrize("unusual", UNUSUAL, ids=[f"number {k}" for k in range(len(UNUSUAL))])
def test_number_that_is_written_with_an_exponent_is_left_to_python(unusual: dict[str, Any]) -> None:
    assert not compare(body_with([unusual]))


def test_what_protobuf_merges_or_drops_is_left_to_python() -> None:
    inner = as_protobuf(request(span(1, {"a": "b"})))
    unknown = inner + b"\x9a\x06\x01x"  # a field that OTLP does not have
    group = inner + b"\x0b\x0c"
    longer = b"\x0a\x7f" + inner[:3]
    for body in (unknown, group, longer, inner[:-1], b"\xff" * 11):
        assert spans(body) is None
        compare(body)
    twice = b"\x0a\x08\x0a\x02\x10\x01\x0a\x02\x10\x02"  # a resource that is sent in two parts
    assert spans(twice) is None


def test_damaged_requests_are_decoded_identically_or_left_to_python() -> None:
    decoded = [compare(each.data) for each in damaged_bodies(DAMAGED) if each.content_type == PROTOBUF]
    assert decoded.count(True) > 10
    assert decoded.count(False) > 10
    kernel = find_kernel().kernel
    assert kernel is not None
    assert kernel.panics() == 0
