"""Observe the spans of a request in the native kernel, which returns the same observations as observed.py.

The kernel knows the usual forms of spans, and the types as they ship. A log whose types differ, a request that the
kernel cannot decode, and a span of an unusual form are left to Python, each as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from refold.agents.adapters.otlp.requests import SentSpan, sent_spans
from refold.avro.definition import TypeDefinition
from refold.avro.kernel import SpanObserver, StatedParts, find_kernel
from refold.avro.shipped import shipped_types
from refold.streams.exchange.import_types import TypeCatalog

TYPES = ("step", "action", "run", "document")


class ObservedSpans(NamedTuple):
    """Spans of one scope that the kernel observed.

    Attributes:
        number: The number of spans.
        stated: The observations of the spans.
        origin: The digest of their resource and scope.
        origin_stated: The observation of the resource and scope.
        definitions: The types' definitions, by name.
    """

    number: int
    stated: StatedParts
    origin: str
    origin_stated: StatedParts
    definitions: Mapping[str, TypeDefinition]


class NativeObserver:
    """Decodes and observes requests for a log with the shipped types."""

    def __init__(self, observer: SpanObserver, definitions: Mapping[str, TypeDefinition]) -> None:
        self._observer = observer
        self._definitions = definitions

    def decode(self, body: bytes) -> tuple[list[SentSpan | ObservedSpans], int] | None:
        """Decode a request in protobuf.

        Args:
            body: The body, decompressed.

        Returns:
            The spans that the kernel observed, the spans that Python has to observe, and how many others have no valid
            ids. None if Python has to decode the request.
        """
        decoded = self._observer.observe(body)
        if decoded is None:
            return None
        scopes, rejected = decoded
        items: list[SentSpan | ObservedSpans] = []
        for resource, scope, origin, count, stated, left in scopes:
            if origin is not None and count:
                items.append(ObservedSpans(count, stated, *origin, self._definitions))
            items += sent_spans(resource, scope, left)
        return items, rejected


def native_observer(types: TypeCatalog) -> NativeObserver | None:
    """Return an observer for a log with these types; None without a kernel, or if they are not as they ship."""
    kernel, shipped = find_kernel().kernel, shipped_types()
    versions = [types.writer(name) for name in TYPES]
    definitions: dict[str, TypeDefinition] = {each.definition.name: each.definition for each in versions}
    are_shipped = all(shipped[name].fingerprint == each.fingerprint for name, each in definitions.items())
    if kernel is None or not are_shipped:
        return None
    readers = [reader for each in versions if (reader := each.codec.native) is not None]
    return NativeObserver(kernel.SpanObserver(*readers), definitions)
