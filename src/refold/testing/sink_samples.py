"""The observations and the log of the conformance suite of sinks (refold.testing.sinks)."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from refold.avro.definition import TypeDefinition, parse
from refold.avro.envelope import ObservationValidator
from refold.avro.ids import identify
from refold.avro.observation import Link, Observation, Source
from refold.streams.log.port import AppendedObservation, LogPort
from refold.streams.open import open_port

TYPE = "sink_sample"
_FIELDS: dict[str, tuple[Any, str]] = {
    "last": ("long", "latest"),
    "start": ("string", "first"),
    "low": ("double", "min"),
    "high": ("long", "max"),
    "total": ("double", "sum"),
    "hits": ("long", "count"),
    "tags": ({"type": "array", "items": "string"}, "union"),
    "log": ({"type": "array", "items": "long"}, "append"),
    "attrs": ({"type": "map", "values": ["null", "string"]}, "map"),
}


def append(log: LogPort, observation: Observation, definition: TypeDefinition) -> None:
    """Append an observation under a definition. Registers the definition if necessary."""
    version = log.registry.find(definition)
    if version is None:
        log.register(definition)
        version = log.registry.find(definition)
        assert version is not None
    data, observation_id = version.codec.encode_identified(observation)
    log.append(AppendedObservation(observation.entity, observation_id, data, observation))


class FollowedLog:
    """A log that the suite writes to and that sinks follow.

    Args:
        types: The definitions to write by, if none is given.
    """

    def __init__(self, url: str, log: LogPort, types: Iterable[TypeDefinition]) -> None:
        self.url = url
        self.log = log
        self._types = {each.name: each for each in types}

    def write(self, observations: Iterable[Observation], definition: TypeDefinition | None = None) -> None:
        """Append observations; they are durable and folded on return.

        Args:
            definition: Used for the observations of its type.
        """
        for each in observations:
            is_given = definition is not None and definition.name == each.type
            append(self.log, each, definition if is_given and definition is not None else self._types[each.type])
        self.log.flush()
        self.await_folded()

    def register(self, definition: TypeDefinition) -> None:
        """Register a definition in the log."""
        self.log.register(definition)

    @contextmanager
    def reader(self) -> Iterator[LogPort]:
        """The log, opened as a sink's process opens it."""
        with contextlib.closing(open_port(self.url, read_only=True)) as log:
            yield log

    def await_folded(self) -> None:
        """Return when the changes of all records exist; in an embedded log they exist after a flush."""


class SinkSamples:
    """The suite's samples: one type with a field for each reducer. Override the methods to record something else."""

    names: ClassVar[Sequence[str]] = tuple(f"{TYPE}/{each}" for each in ("a", "a/b", "aa", "a ", "ä", "long" * 200))

    def definition(self, **fields: dict[str, Any]) -> TypeDefinition:
        """Return the type.

        Args:
            fields: Fields that another version replaces or adds. A field `last` must be a long.
        """
        return sample_type(**fields)

    def assertion(self, entity: str, number: int, **patch: Any) -> Observation:
        """Return one observation of an agent, one second after the previous one.

        Args:
            entity: The observed entity.
            number: The observation's `seq`.
            **patch: The fields [`last` is set to the number].
        """
        source = Source("agent", "run", seq=number)
        return Observation(entity, 1_700_000_000_000_000 + number * 1_000_000, source=source,
                           patch=patch or {"last": number})  # fmt: skip

    def history(self, seed: int, length: int) -> list[Observation]:
        """Return observations in the order of arrival, with late ones, repeats, corrections, retractions, clears and
        links.

        Args:
            seed: Equal seeds give equal histories.
            length: The number of observations.
        """
        return sample_history(seed, length)

    @pytest.fixture
    def seed(self) -> int:
        """REFOLD_SEED, or a random seed, which is printed with the test's output."""
        found = int(os.environ.get("REFOLD_SEED") or random.SystemRandom().randrange(2**32))
        print(f"REFOLD_SEED={found}")
        return found

    @pytest.fixture
    def fault_rounds(self) -> int:
        """How often a process is killed: REFOLD_FAULT_ROUNDS, or 6."""
        return int(os.environ.get("REFOLD_FAULT_ROUNDS", "6"))

    @pytest.fixture
    def followed(self, tmp_path: Path) -> Iterator[FollowedLog]:
        """The log that the sink follows: an embedded one."""
        url = f"file:{tmp_path / 'log'}?partitions=4"
        with contextlib.closing(open_port(url)) as log:
            yield FollowedLog(url, log, [self.definition()])


def sample_type(**fields: dict[str, Any]) -> TypeDefinition:
    """Return a type with a field for each built-in reducer.

    Args:
        fields: Fields to replace or to add.
    """
    every = {name: {"type": given, "refold.reducer": reducer} for name, (given, reducer) in _FIELDS.items()}
    every["log"]["refold.limit"] = 3
    every.update(fields)
    listed = [{"name": name, **given} for name, given in every.items()]
    return parse({"type": "record", "name": TYPE, "namespace": "refold.types", "fields": listed})


def sample_history(seed: int, length: int) -> list[Observation]:
    """Return `length` observations of three entities, and repeats of some. Deterministic in its arguments."""
    rng, validator = random.Random(seed), ObservationValidator(sample_type())
    arrivals: list[tuple[int, Observation]] = []
    ids: list[bytes] = []
    for number in range(length):
        kind = rng.choice(("patch", "patch", "patch", "patch", "clear", "retract", "link", "unlink"))
        patch = {name: _value(rng, name) for name in rng.sample(sorted(_FIELDS), rng.choice((1, 1, 2, 4)))}
        link = Link(rng.choice(("about", "in")), rng.choice((f"{TYPE}/2", "document/x")), None, None)
        is_link = kind in ("link", "unlink")
        retracted = rng.sample(ids, min(len(ids), 2)) if kind == "retract" else []
        observation = validator.build(
            f"{TYPE}/{rng.randrange(3)}",
            {} if is_link or (retracted and rng.random() < 0.5) else patch,
            observed_at=1_600_000_000_000_000 + number // 3,
            now=1_600_000_000_000_000 + length,
            kind="link" if kind == "link" else "unlink" if kind == "unlink" else "assert",
            priority=rng.choice((0, 0, 0, 1, -1)),
            source=Source(rng.choice(("a", "b", "")), "r", seq=number),
            cleared=rng.sample(sorted(_FIELDS), 2) if kind == "clear" else (),
            retracts=retracted,
            link=link if is_link else None,
        )
        ids.append(identify(observation))
        place = number + (rng.randrange(1, 40) if rng.random() < 0.15 else 0)
        arrivals.append((place, observation))
        if rng.random() < 0.1:
            arrivals.append((place + rng.randrange(40), observation))
    return [observation for _, observation in sorted(arrivals, key=lambda arrival: arrival[0])]


def _value(rng: random.Random, name: str) -> Any:
    longs, texts = (0, 1, 2, -1, 2**63 - 1, -(2**63)), ("", "a", "b", "\uffff", "\U00010000")
    if name in ("low", "total"):
        return rng.choice((0.0, 1.0, -1.0, 0.5, 0.1, -0.3, 1e16, -1e16, 1e300, 5e-324))
    if name == "start":
        return rng.choice(texts)
    if name == "tags":
        return [rng.choice(texts) for _ in range(rng.randrange(4))]
    if name == "log":
        return [rng.choice(longs) for _ in range(rng.randrange(5))]
    if name == "attrs":
        return {rng.choice(texts): rng.choice((None, "x", "y")) for _ in range(rng.randrange(4))}
    return rng.choice(longs)
