"""The public conformance suite of sinks, with the histories of refold's own tests, which include a custom reducer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from refold.avro.definition import TypeDefinition
from refold.avro.observation import Observation
from refold.testing.sinks import ServedConformance, SinkConformance, SinkSamples
from refold_tests.histories import TYPE, random_history
from refold_tests.sample_types import NAMES, defined, document, said


class OwnSamples(SinkSamples):
    """The type `everything`."""

    names: ClassVar[Sequence[str]] = NAMES

    def definition(self, **fields: dict[str, Any]) -> TypeDefinition:
        return defined(document(TYPE, **fields))

    def said(self, entity: str, number: int, **patch: Any) -> Observation:
        return said(entity, number, **patch)

    def history(self, seed: int, length: int) -> list[Observation]:
        return random_history(seed, length)


class OwnConformance(OwnSamples, SinkConformance):
    """The suite for refold's own sinks."""


class OwnServedConformance(OwnSamples, ServedConformance):
    """The suite for refold's own sinks with a server."""
