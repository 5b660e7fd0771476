"""A log as its tests use it: opened twice, written to, and compared with the naive fold."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import NamedTuple

from refold.avro.definition import TypeDefinition
from refold.avro.observation import Observation
from refold.reducers.entity import unpack
from refold.streams.change_reader import ChangeReader
from refold.streams.changes import Change
from refold.streams.log.port import LogPort, LogReader, Record
from refold.streams.point import Points
from refold.streams.rebuild.rebuild import rebuild
from refold.testing.sink_samples import append
from refold_tests.clock import BEGIN_MS, FileClock
from refold_tests.histories import random_history
from refold_tests.reference import reference_hash, reference_state
from refold_tests.sample_types import NAMES, OTHER, THING, reference_definition, said

PARTITIONS = 4


class Handles(NamedTuple):
    """One log: a handle to write it, and one to read it."""

    write: LogPort
    read: LogPort


class Opened(ABC):
    """A log of PARTITIONS partitions in its own place. A test may open and close it as often as it wants."""

    clock: FileClock | None = None
    """The clock of the log; None: it uses its own."""
    has_workers = False
    """Whether a worker folds it."""

    @abstractmethod
    def __call__(self) -> AbstractContextManager[Handles]:
        """Open the log until the end of the block. It is created if it does not exist."""

    def set_clock(self, later_ms: int) -> None:
        """Set the clock to this long after BEGIN_MS."""
        assert self.clock is not None
        self.clock.set(BEGIN_MS + later_ms)


def put(log: LogPort, observations: Iterable[Observation], definition: TypeDefinition = THING) -> None:
    """Append under a definition, which is registered if necessary. Observations of OTHER's type use OTHER."""
    for each in observations:
        append(log, each, OTHER if each.type == OTHER.name else definition)


def mixed(seed: int) -> list[Observation]:
    """Return a random history, mixed with simple observations of entities with unusual names."""
    rng = random.Random(seed)
    observations = random_history(seed, 150)
    for number in range(100):
        observations.insert(rng.randrange(len(observations)), said(rng.choice(NAMES), number))
    return observations


def written(handles: Handles, observations: Iterable[Observation]) -> None:
    """Append, flush, and refresh the reader."""
    put(handles.write, observations)
    handles.write.flush()
    handles.read.refresh()


def everything(log: LogReader) -> dict[int, list[Record]]:
    """Return all records, by partition."""
    return {partition: list(log.read(partition, 0, end)) for partition, end in log.ends().items()}


def changes_of(log: LogReader) -> dict[str, list[Change]]:
    """Return all changes, by entity."""
    reader = ChangeReader(log)
    found: dict[str, list[Change]] = defaultdict(list)
    for partition in range(log.partitions):
        for record in log.read_changes(partition, 0):
            change = reader.decode(record.data)
            found[change.entity].append(change)
    return found


def assert_folded(log: LogReader, observations: Sequence[Observation], definition: TypeDefinition = THING) -> None:
    """Check that the table and the chains of changes match the observations, by the naive fold."""
    reference = reference_definition(definition)
    states = {name: unpack(name, packed) for name, packed in log.stored_entities()}
    assert states.keys() == {each.entity for each in observations}
    chains = changes_of(log)
    for name, entity in states.items():
        expected = reference_state(reference, name, list(enumerate(observations)))
        assert entity.version == expected["version"]
        assert entity.state_hash == reference_hash(expected)
        assert_chain(chains[name])
        assert (chains[name][-1].to_version, chains[name][-1].hash_after) == (
            entity.version,
            entity.state_hash,
        )


def assert_rebuilt(log: LogReader, observations: Sequence[Observation], definition: TypeDefinition = THING) -> None:
    """Check that a rebuild at the log's end matches the observations, by the naive fold."""
    rebuilt = rebuild(log, Points(log, 0).end(), parallel=False)
    states = {name: unpack(name, packed) for name, packed in rebuilt.rows()}
    assert states.keys() == {each.entity for each in observations}
    for name, entity in states.items():
        expected = reference_state(reference_definition(definition), name, list(enumerate(observations)))
        assert (entity.version, entity.state_hash) == (expected["version"], reference_hash(expected))


def assert_chain(changes: Sequence[Change]) -> None:
    """Check that versions count from 0 without gaps, and that hashes link up."""
    assert (changes[0].from_version, changes[0].hash_before) == (0, None)
    for before, after in pairwise(changes):
        assert (after.from_version, after.hash_before) == (before.to_version, before.hash_after)
    for each in changes:
        versions = [step.version for step in each.steps]
        assert versions == list(range(each.from_version + 1, each.to_version + 1))
        assert all(step.offset < each.through for step in each.steps)
