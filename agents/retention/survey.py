"""One pass over a log's observations: which contents belong to which run, and which to anything else.

What is a run's: the contents that observations of its own entities name, run/<id>, step/<id>#<n>, and those of actions
and effects, and of an imported run its session, where the observation's source is this run. All else that names a
content, a document for example, keeps it: equal contents are stored once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from refold.agents.vault import SEALED_CONTENT
from refold.avro.blob import Blob, references
from refold.avro.errors import UndecodableError
from refold.avro.observation import Observation, type_of
from refold.streams.cut import Cut
from refold.streams.log.port import LogPort

_BY_SOURCE = frozenset({"action", "effect", "agent_session"})


@dataclass(slots=True)
class Survey:
    """What a pass found. ended_ms: when the log took what says that a run ended, by run.

    owned: by run, contents that are there, with their bytes and whether they are sealed. held: contents that something
    names which is no run's.
    """

    ended_ms: dict[str, int] = field(default_factory=dict)
    owned: dict[str, dict[bytes, tuple[int, bool]]] = field(default_factory=lambda: defaultdict(dict))
    held: set[bytes] = field(default_factory=set)

    def free(self, expiring: Iterable[str]) -> dict[bytes, tuple[int, bool]]:
        """The contents that nothing names but these runs."""
        gone = {*expiring}
        found = {digest: each for run in gone for digest, each in self.owned.get(run, {}).items()}
        for digest in self.held:
            found.pop(digest, None)
        for run, contents in self.owned.items():
            if run not in gone:
                for digest in contents:
                    found.pop(digest, None)
        return found


def survey(log: LogPort, cut: Cut, runs: Mapping[str, bool]) -> Survey:
    """The pass, up to a cut. runs: whether each was imported."""
    found = Survey()
    for partition, end in cut.offsets.items():
        for record in log.read(partition, 0, end):
            try:
                observation = log.registry.decode(record.data)
            except UndecodableError:  # a verdict is on it, or verify says so: it names nothing
                continue
            run = run_of(observation, runs)
            said = observation.patch
            if run is not None and observation.type == "run" and ("ended_at" in said or said.get("status") == "ended"):
                found.ended_ms[run] = max(found.ended_ms.get(run, 0), record.recorded_at)
            for blob in references(observation.patch.values(), log.blob):
                _take(log, found, run, blob)
    return found


def _take(log: LogPort, found: Survey, run: str | None, blob: Blob) -> None:
    if run is None:
        found.held.add(blob.hash)
    elif (size := log.blob_size(blob.hash)) is not None:
        found.owned[run][blob.hash] = (size, blob.media_type == SEALED_CONTENT)


def run_of(observation: Observation, runs: Mapping[str, bool]) -> str | None:
    """The run that what an observation says belongs to, if any."""
    kind, name = type_of(observation.entity), observation.entity.partition("/")[2]
    if kind == "step":
        name = name.rpartition("#")[0]
    elif kind in _BY_SOURCE:
        name = observation.source.run
        if kind == "agent_session" and not runs.get(name):
            return None
    elif kind != "run":
        return None
    return name if name in runs else None
