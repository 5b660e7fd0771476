"""Observations and changes of every shipped type: random values, folded by an embedded log."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import Phase, given, settings
from hypothesis import seed as seeded

from refold.avro.definition import TypeDefinition
from refold.avro.observation import Observation
from refold.avro.shipped import shipped_types
from refold.streams.change_reader import ChangeReader
from refold.streams.changes import Change
from refold_tests.opening import open_log
from refold_tests.specimens import patches

_PATCHES = 25


class Sample(NamedTuple):
    """A type, with the observations and changes of one of its entities in a log."""

    definition: TypeDefinition
    observations: list[Observation]
    changes: list[Change]


def samples(folder: Path, seed: int) -> list[Sample]:
    """Return a sample for each shipped type, using a log that is created in the folder."""
    types = shipped_types()
    with open_log(folder, partitions=1, types=[*types.values()]) as log:
        for number, definition in enumerate(types.values()):
            entity = f"{definition.name}/one"
            every = drawn(definition, seed + number)
            last = [log.observe(entity, patch, source="somebody", subject="s") for patch in every][-1]
            log.observe(entity, cleared=[*every[-1]], causes=[last], priority=-1)
            log.link(entity, "beside", f"{definition.name}/two", valid_from=0)
            log.retract(entity, last)
        log.flush()
        observations = [log.port.registry.decode(each.data) for each in log.port.read(0, 0, log.port.ends()[0])]
        reader = ChangeReader(log.port)
        changes = [reader.decode(each.data) for each in log.port.read_changes(0, 0)]
    return [
        Sample(
            definition,
            [each for each in observations if each.type == definition.name],
            [each for each in changes if each.entity.startswith(f"{definition.name}/")],
        )
        for definition in types.values()
    ]


def drawn(definition: TypeDefinition, seed: int, count: int = _PATCHES) -> list[dict[str, Any]]:
    """Return random patches of a type. The same seed gives the same patches."""
    found: list[dict[str, Any]] = []

    @seeded(seed)
    @settings(max_examples=count, database=None, phases=[Phase.generate])
    @given(patch=patches(definition))
    def draw(patch: dict[str, Any]) -> None:
        found.append(patch)

    draw()
    return found
