"""A check of the rules for importers, for the tests of an importer.

from refold.testing.importers import check_importer

def test_my_importer():
    check_importer(MINE, "tests/sample.jsonl")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from refold.agents.importers.conversation import import_conversation
from refold.agents.importers.file import ImportFile
from refold.agents.importers.model import Importer
from refold.agents.importers.registry import every, recognised
from refold.avro.definition import TypeDefinition
from refold.avro.observation import Kind, Link, Observation, Source
from refold.avro.shipped import shipped_types
from refold.streams.exchange.import_types import TypeCatalog
from refold.streams.exchange.intake import Recorder


@dataclass(slots=True)
class Imports:
    """The result of importing a file.

    Attributes:
        ids: The ids of the observations, in order.
        by_id: The observations, by their ids.
        blobs: The contents that are too large for observations, by SHA-256.
        conversations: The number of conversations.
        without_time: The number of conversations that have no time at all.
        unknown, left_out: The number of unknown lines or items of each kind that were stored, and the number that were
            skipped.
    """

    ids: list[str] = field(default_factory=list)
    by_id: dict[str, Observation] = field(default_factory=dict)
    blobs: dict[bytes, bytes] = field(default_factory=dict)
    conversations: int = 0
    without_time: int = 0
    unknown: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)

    @property
    def entities(self) -> list[str]:
        """The names of all entities that were observed, each once, in order."""
        return list(dict.fromkeys(each.entity for each in self.by_id.values()))


def imports_of(importer: Importer, path: str | Path, keys: Mapping[str, str] | None = None) -> Imports:
    """Import a file without a log.

    Args:
        importer: The importer.
        path: The file.
        keys: As --map: the key in the file by the key of the format.

    Returns:
        Every observation, with the id that it has in every log.

    Raises:
        InputError: The file is not of the format, or holds values that cannot be observed.
    """
    found = Imports()

    def take(
        observation: Observation, observation_id: bytes, definition: TypeDefinition, blobs: Mapping[bytes, bytes],
        data: bytes | None,
    ) -> None:  # fmt: skip
        found.ids.append(observation_id.hex())
        found.by_id[observation_id.hex()] = observation
        found.blobs.update(blobs)

    recorder = Recorder(TypeCatalog((), {}, shipped_types(), None), take)
    file = ImportFile(Path(path), keys=keys or {})

    def observe(
        entity: str, patch: Mapping[str, object] | None = None, *, source: Source, observed_at: int,
        causes: Sequence[str] = (), link: Link | None = None, kind: Kind = "assert",
    ) -> str:  # fmt: skip
        assert all(cause in found.by_id for cause in causes), f"{entity} names a cause that was not observed before it"
        return recorder.observe(
            entity, patch, source=source, observed_at=observed_at, causes=causes, link=link, kind=kind
        )

    for conversation in importer.read(file):
        done = import_conversation(conversation, observe)
        found.conversations += done.conversations
        found.without_time += done.without_time
    found.unknown, found.left_out = dict(file.unknown), dict(file.left_out)
    return found


def check_importer(importer: Importer, path: str | Path) -> Imports:
    """Check an importer with a file of its format.

    1. It recognises the file, and no other installed importer does.
    2. Importing twice makes the same observations, so the second import adds nothing.
    3. No two of its observations are equal: repeats in the file stay separate.
    4. A cause is observed before its effect.
    5. Each run names its source, and has an end.
    6. No field of any entity holds a time that the source does not have.

    Args:
        importer: The importer.
        path: A file that it reads without an error.

    Returns:
        What importing the file observes, for further assertions.

    Raises:
        AssertionError: A rule is broken; the message names it.
    """
    sample = ImportFile(Path(path)).sample()
    others = [each for each in every() if each.name != importer.name]
    recognisers = [each.importer.name for each in recognised(sample, [importer, *others])]
    assert recognisers == [importer.name], f"the file is recognised as {recognisers}, not as {importer.name} alone"
    found, again = imports_of(importer, path), imports_of(importer, path)
    assert found.conversations > 0, "the file holds no conversation"
    assert found.ids == again.ids, "a second import makes other observations"
    assert len(set(found.ids)) == len(found.ids), "an observation is made twice"
    runs = {entity for entity in found.entities if entity.startswith("run/")}
    assert len(runs) == found.conversations, "conversations share a run"
    for run in runs:
        patches = [each.patch for each in found.by_id.values() if each.entity == run]
        assert any("imported_from" in each for each in patches), f"{run} does not say what it was imported from"
        assert any(each.get("status") == "ended" for each in patches), f"{run} has no end"
        if not any("started_at" in each for each in patches):
            _check_untimed(found, run)
    return found


def _check_untimed(found: Imports, run: str) -> None:
    for each in found.by_id.values():
        if f"run/{each.source.run}" == run:
            made_up = [name for name in each.patch if name.endswith("_at")]
            assert not made_up, f"{each.entity} has {', '.join(made_up)}, and its source has no time"
