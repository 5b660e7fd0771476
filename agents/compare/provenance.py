"""The observations that caused the first divergence, in the logs: for each side, with what they were derived from.

    a read with another answer           each field of the entity that differs, at the two points of the reads
    any other difference in a step       the recorded step; in a conversation the tool call, or the message
    a run's input or end                 the run

Each is a field of an entity, with the chain of its causes. A side whose log does not hold (or no longer holds) what the
recording names has no chain. Folded, only relevant causes are shown: causes that both sides depend on explain no
difference, and of the others the nearest are shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from refold.agents.compare.divergence import Divergence, Side, What
from refold.agents.journal.delta import is_same
from refold.agents.journal.record import Call, Recording
from refold.agents.recorder.log_backend import read_again
from refold.avro.errors import InputError
from refold.streams.client import Log
from refold.streams.view import EntityView, TraceLink, trace

DEPTH = 2
CAUSES_MAX = 3


class FieldCauses(NamedTuple):
    """One field on one side, the nearest observation first.

    Attributes:
        key: The key, for a map field; else None.
    """

    side: Literal["a", "b"]
    entity: str
    field: str
    key: str | None
    chain: tuple[TraceLink, ...]


class FieldProvenance(NamedTuple):
    """The provenance of one field, as it is shown.

    Attributes:
        links: The shown links of its chain.
        shared: How many others both sides depend on.
        more: How many causes are left out.
    """

    behind: FieldCauses
    links: tuple[TraceLink, ...]
    shared: int
    more: int


class RunInLog(NamedTuple):
    """A run and its log."""

    run: Recording
    log: Log


OF_RUN: dict[What, str] = {
    "agent": "agent", "input": "input", "seed": "seed", "state": "state", "run_outcome": "outcome", "output": "output",
    "run_failure": "error", "patch": "fork_patch",
}  # fmt: skip
OF_ACTION: dict[What, str] = {"arguments": "inputs", "tool": "tool", "call": "tool", "answer": "output",
                              "failure": "output"}  # fmt: skip


def provenance(found: Divergence, a: RunInLog, b: RunInLog, depth: int = DEPTH) -> list[FieldCauses]:
    """Return the provenance of both sides, a's first.

    Args:
        found: The divergence.
        a: One run and its log.
        b: The other run and its log.
        depth: How many causes back a chain reaches.
    """
    if found.within is not None:
        child_a, child_b = a.run.children[found.within.a.run], b.run.children[found.within.b.run]
        return provenance(found.within, RunInLog(child_a, a.log), RunInLog(child_b, b.log), depth)
    read_a, read_b = _read_call(found.a, a.run, found.what), _read_call(found.b, b.run, found.what)
    if read_a is not None and read_b is not None:
        return list(_causes_of_reads(read_a, read_b, a, b, depth))
    sides = (("a", found.a, a), ("b", found.b, b))
    return [each for name, side, known in sides for each in _causes_of_side(name, side, known, found.what, depth)]  # type: ignore[arg-type]


def folded(behind: Sequence[FieldCauses]) -> list[FieldProvenance]:
    """Return the provenance without the common part: the beginning of each chain, and few causes.

    Causes that both sides depend on are left out if the sides belong together: by entity and field, or because each is
    the only one of its side.
    """
    sides = [[each for each in behind if each.side == side] for side in ("a", "b")]
    found = []
    for each in behind:
        others = sides[0] if each.side == "b" else sides[1]
        alike = [other for other in others if (other.entity, other.field) == (each.entity, each.field)]
        alike = alike or (others if len(sides[0]) == len(sides[1]) == 1 else [])
        known = {link.observation_id for other in alike for link in other.chain}
        own = [link for link in each.chain if link.observation_id not in known]
        if all(link.depth for link in own):
            own = [*each.chain[:1], *own]  # the observation of the value, even if both sides depend on it
        near = [link for link in own if link.depth == 0]
        causes = [link for link in own if link.depth > 0]
        shown = (*near, *causes[:CAUSES_MAX])
        found.append(FieldProvenance(each, shown, len(each.chain) - len(own), len(own) - len(shown)))
    return found


def _read_call(side: Side, run: Recording, what: What) -> Call | None:
    """Return the call that a divergence is about, if it is a read that was answered."""
    if what != "answer" or side.step is None or side.call is None or side.attempt is None:
        return None
    step = next(each for each in run.steps if each.number == side.step)
    call = next(each for each in step.attempts if each.number == side.attempt).calls[side.call - 1]
    return call if call.asked.kind == "read" and isinstance(call.answer, dict) else None


def _causes_of_reads(read_a: Call, read_b: Call, a: RunInLog, b: RunInLog, depth: int) -> Iterator[FieldCauses]:
    entity = read_a.asked.name
    view_a, view_b = _entity_as_read(read_a, a.log), _entity_as_read(read_b, b.log)
    if view_a is None or view_b is None:
        for name, read, known in (("a", read_a, a), ("b", read_b, b)):
            ids = [bytes.fromhex(each) for each in read.answer.get("observations", ())]
            chain = _nearest_links(trace(known.log.port, known.log.point().cut, ids), depth)
            yield FieldCauses(name, entity, "", None, chain)  # type: ignore[arg-type]
        return
    one, other = view_a.shown(), view_b.shown()
    for field in dict.fromkeys([*one, *other]):
        if field in one and field in other and is_same(one[field], other[field]):
            continue
        if field in one:
            yield FieldCauses("a", entity, field, None, _nearest_links(view_a.why(field), depth))
        if field in other:
            yield FieldCauses("b", entity, field, None, _nearest_links(view_b.why(field), depth))


def _entity_as_read(read: Call, log: Log) -> EntityView | None:
    """Return the entity at the point at which it was read; None if this log cannot rebuild it."""
    try:
        return read_again(log, read.asked.name, read.answer)
    except InputError:
        return None


def _causes_of_side(
    name: Literal["a", "b"], side: Side, known: RunInLog, what: What, depth: int
) -> Iterator[FieldCauses]:
    for entity, field, key in _places(side, known.run, what):
        try:
            chain = known.log.state(entity).why(field, key)
        except InputError:  # this log has nothing of it
            continue
        yield FieldCauses(name, entity, field, key, _nearest_links(chain, depth))
        return


def _places(side: Side, run: Recording, what: What) -> Iterator[tuple[str, str, str | None]]:
    """Yield the possible places in the log, most likely first: a fork's first steps are its parent's."""
    if what in OF_RUN:
        yield f"run/{run.run}", OF_RUN[what], None
    elif side.step is not None:
        for owner in (run.run, run.parent):
            step = f"{owner}#{side.step}"
            if run.has_code:
                yield f"step/{step}", "journal", str(side.attempt or 1)
                continue
            if what in OF_ACTION and side.call is not None:
                yield f"action/{step}.{side.call}", OF_ACTION[what], None
            yield f"step/{step}", "message" if what == "result" else "decision", None


def _nearest_links(chain: list[TraceLink], depth: int) -> tuple[TraceLink, ...]:
    return tuple(each for each in chain if each.depth <= depth)
