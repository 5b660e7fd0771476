"""The first difference between two runs: the answer of `refold run compare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from refold.agents.compare.compare import compare, uncompared
from refold.agents.compare.divergence import Divergence, divergence_json
from refold.agents.compare.provenance import DEPTH, FieldCauses, RunInLog, provenance
from refold.agents.log import AgentLog
from refold.explorer.queries.entity import opened_chain_json
from refold.explorer.queries.query import arguments_of
from refold.explorer.queries.run_names import known_run

Pair = tuple[RunInLog, RunInLog]


@dataclass(frozen=True, slots=True)
class CompareQuery:
    """Compares two runs of one log at one point.

    Args:
        a: The first run: its id, or the beginning of it.
        b: The second run, likewise.
        at: The point to answer for, as WHEN; None: now.
        exact: Whether clock readings, random numbers and generated ids count as differences too.
        depth: At most how many causes back the provenance goes.
    """

    a: str
    b: str
    at: str | None = None
    exact: bool = False
    depth: int = DEPTH

    @property
    def arguments(self) -> list[str]:
        """The arguments of `refold run compare`."""
        depth = None if self.depth == DEPTH else str(self.depth)
        named = {"at": self.at, "exact": self.exact, "depth": depth}
        return arguments_of(["run", "compare"], named, self.a, self.b)

    def pair(self, log: AgentLog) -> Pair:
        """Return both runs, opened.

        Raises:
            NotAnswerable: The content of a run is gone.
        """
        return known_at(log, self.a, self.at), known_at(log, self.b, self.at)

    def answer(self, log: AgentLog) -> dict[str, Any]:
        """Return the first divergence and its provenance."""
        pair = self.pair(log)
        found = compare(pair[0].run, pair[1].run, exact=self.exact)
        behind = [] if found is None else provenance(found, *pair, self.depth)
        return compare_json({"a": log, "b": log}, pair, found, behind, self.at)


def known_at(log: AgentLog, run: str, at: str | None = None) -> RunInLog:
    """Return a run together with its log."""
    cut = log.point(at).cut
    return RunInLog(log.recording(known_run(log, run, cut), cut), log)


def compare_json(
    logs: Mapping[str, AgentLog],
    pair: Pair,
    found: Divergence | None,
    behind: Sequence[FieldCauses],
    at: str | None = None,
) -> dict[str, Any]:
    """Return a comparison in JSON.

    Args:
        logs: The log of each side, by "a" and "b".
        pair: Both runs.
        found: The first divergence; None: the runs are equal.
        behind: The provenance of the divergence.
        at: The point that both logs are read at, as WHEN.
    """
    sides = {
        side: {"run": each.run.run, "hash": each.run.hash, "steps": len(each.run.steps)}
        for side, each in zip("ab", pair, strict=True)
    }
    return {
        "equal": found is None,
        **sides,
        "divergence": None if found is None else divergence_json(found),
        "uncompared": uncompared(pair[0].run, pair[1].run),
        "provenance": [
            {
                "side": each.side, "entity": each.entity, "field": each.field, "key": each.key,
                "chain": opened_chain_json(logs[each.side], list(each.chain), logs[each.side].point(at).cut),
            }
            for each in behind
        ],
    }  # fmt: skip
