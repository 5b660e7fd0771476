"""A log's `observe` that only validates and remembers, for tests of what is observed, without a log."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from refold.avro.definition import parse
from refold.avro.envelope import ObservationValidator
from refold.avro.ids import identify
from refold.avro.observation import Kind, Link, Observation, Source
from refold.avro.times import TIME_MAX
from refold_tests.tree import ROOT


@cache
def door(kind: str) -> ObservationValidator:
    """Return a log's validator for one shipped type."""
    path = ROOT / "avro" / "types" / f"{kind}.avsc"
    return ObservationValidator(parse(json.loads(path.read_text(encoding="utf-8")), place=path.name))


@dataclass(slots=True)
class Recorder:
    """The observations by id, in order. `patches` has the patches of each entity, as given."""

    observations: dict[str, Observation] = field(default_factory=dict)
    patches: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    blobs: dict[bytes, bytes] = field(default_factory=dict)

    def observe(
        self,
        entity: str,
        patch: Mapping[str, object] | None = None,
        *,
        source: Source,
        observed_at: int,
        causes: Sequence[str] = (),
        link: Link | None = None,
        kind: Kind = "assert",
    ) -> str:
        """Validate as a log does; return the real id."""
        observation = door(entity.partition("/")[0]).build(
            entity,
            patch,
            observed_at=observed_at,
            now=TIME_MAX,
            source=source,
            causes=causes,
            link=link,
            kind=kind,
            blobs=self.blobs,
        )
        identifier = identify(observation).hex()
        assert all(cause in self.observations for cause in causes), f"{entity} names a cause not seen before it"
        self.observations[identifier] = observation
        if patch is not None:
            self.patches.setdefault(entity, []).append(patch)
        return identifier

    def entities(self, kind: str) -> list[str]:
        """Return the asserted entities of a type, in order."""
        return [entity for entity in self.patches if entity.startswith(f"{kind}/")]

    def latest(self, entity: str) -> dict[str, Any]:
        """Return the last assertion of each field, in the order given."""
        return {name: value for patch in self.patches[entity] for name, value in patch.items()}

    def links(self) -> set[tuple[str, str, str]]:
        """Return every (entity, relation, target)."""
        every = self.observations.values()
        return {(each.entity, each.link.relation, each.link.target) for each in every if each.link}
