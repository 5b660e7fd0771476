"""A log's `observe` for those who build many observations and must not begin to write before all are good."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from refold.avro.ids import identify
from refold.avro.observation import Kind, Link, Source, type_of
from refold.streams.exchange.intake import Take
from refold.streams.exchange.vocabulary import Vocabulary


class Recorder:
    """Checks each observation as a log does, and hands it on: to a counter first, then to a log's Intake."""

    def __init__(self, vocabulary: Vocabulary, take: Take) -> None:
        self._vocabulary = vocabulary
        self._take = take

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
        """The observation's id in hex. observed_at in microseconds, which may be ahead; raises InputError."""
        door = self._vocabulary.door(type_of(entity))
        self._vocabulary.use(door.definition)
        blobs: dict[bytes, bytes] = {}
        observation = door.build(
            entity,
            patch,
            observed_at=observed_at,
            now=observed_at,
            kind=kind,
            source=source,
            causes=causes,
            link=link,
            blobs=blobs,
        )
        observation_id = identify(observation)
        self._take(observation, observation_id, door.definition, blobs)
        return observation_id.hex()
