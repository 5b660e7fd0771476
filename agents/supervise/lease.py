"""Who owns an agent, what it should do, and what it does: decided from its records in the log's order. Pure.

1. A supervisor requests an agent by an act `claimed` with a new token, which names the last claim and the last beat
   that it had seen. It is granted if at its position that is still the last beat of the last claim; else it is denied
   for good, because no beat of a claim comes twice. So of several requests the first is granted, and a renewal that
   comes first denies them all.
2. A granted claim has the next term, a fencing number. `renewed` counts only for the last claim, and only with the next
   beat; `released` ends it. Acts of earlier claims count for nothing.
3. When a claim may be requested is not decided here but by clocks (owner.py): a claim that is open is requested only
   when its last beat is older than its lease.
4. A status counts if it was recorded by the last claim, whose token is its source's run. It has the term as its
   priority. So also where only the folded state is read, no status of an earlier owner hides one of a later owner.
5. Of the requests of people, the one with the highest number counts. Two that were made at once have the same number:
   of them the later one counts, as in the folded state.
6. A checkpoint is what a reader knew after one of the records. It depends on nothing but the records up to that one, so
   it is true whoever recorded it, and also if its author has lost the agent meanwhile. A new reader begins with the
   newest one (entries.py). The owner records one with a renewal after each CHECKPOINT_AFTER records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from refold.avro.observation import Observation
from refold.reducers.order import order_key

ACTIVE = frozenset({"starting", "running", "healing", "pausing", "paused", "stopping"})
"""In these statuses a process may exist, unless its owner is gone."""
ACTING_SHARE = 0.8
"""The share of a lease, from before a renewal, in which its owner may act."""
RENEWING_SHARE = 1 / 3
"""After which share of a lease its owner renews it."""
DESIRED = ("running", "paused", "stopped")
LEASE_MS = 30_000
"""How long after a renewal a claim lasts, if nothing else is given."""
CHECKPOINT_AFTER = 500
"""After how many records of an agent its owner records a checkpoint."""
_RULES = 1
"""The version of the rules by which checkpoints are made. A reader with other rules ignores them."""


class DesiredState(NamedTuple):
    """The requested state of an agent: running, paused or stopped; empty if nothing was requested.

    Attributes:
        number: The number of the request.
        at: When it was requested, in microseconds since 1970.
    """

    what: str = ""
    number: int = 0
    by: str = ""
    why: str = ""
    at: int = 0


class ObservedState(NamedTuple):
    """The state of an agent, as its owner recorded it. The names are those of the fields of the type `agent`.

    Attributes:
        status: The status; empty if nothing was recorded.
        restart_at: When the agent is to be started again, in microseconds since 1970.
        handled: The number of the request that was followed.
        heals: How often a process that heals the run was to be started for its failure; 0 if the run is not being
            healed.
    """

    status: str = ""
    why: str = ""
    run: str = ""
    attempt: int = 0
    failures: int = 0
    handled: int = 0
    restart_at: int = 0
    pid: int = 0
    process_start: int = 0
    boot: str = ""
    host: str = ""
    exit_status: int | None = None
    heals: int = 0


_NOTHING_DESIRED, _NOTHING_OBSERVED = DesiredState(), ObservedState()


@dataclass(slots=True)
class AgentRecord:
    """The state of one agent below `offset` of the log; updated by `apply`.

    Attributes:
        token: The token of the last claim; empty if there was none.
        beat: The number of that claim's last beat.
        is_open: Whether that claim was not released.
        term: How many claims were granted.
        last: The position and id of the last record that was taken.
        since_checkpoint: How many records were taken after the newest checkpoint.
    """

    offset: int = 0
    token: str = ""
    beat: int = 0
    is_open: bool = False
    term: int = 0
    lease_ms: int = 0
    owner: str = ""
    desired: DesiredState = _NOTHING_DESIRED
    observed: ObservedState = _NOTHING_OBSERVED
    last: tuple[int, bytes] = (-1, b"")
    since_checkpoint: int = 0
    _desired_order: tuple[int, bytes] = (0, b"")

    def checkpoint(self) -> dict[str, Any]:
        """Return what `from_checkpoint` takes, of JSON's types."""
        offset, record_id = self.last
        priority, key = self._desired_order
        return {
            "rules": _RULES, "offset": offset, "id": record_id.hex(), "token": self.token, "beat": self.beat,
            "is_open": self.is_open, "term": self.term, "lease_ms": self.lease_ms, "owner": self.owner,
            "desired": _nondefault_fields(self.desired), "desired_order": [priority, key.hex()],
            "observed": _nondefault_fields(self.observed),
        }  # fmt: skip

    @classmethod
    def from_checkpoint(cls, found: Mapping[str, Any]) -> Self | None:
        """Return what the log said up to a checkpoint's record; None if it was made by other rules."""
        if found.get("rules") != _RULES:
            return None
        priority, key = found["desired_order"]
        return cls(
            found["offset"] + 1, found["token"], found["beat"], found["is_open"], found["term"], found["lease_ms"],
            found["owner"], DesiredState(**found["desired"]), ObservedState(**found["observed"]),
            (found["offset"], bytes.fromhex(found["id"])), 0, (priority, bytes.fromhex(key)),
        )  # fmt: skip

    def apply(self, observation: Observation, observation_id: bytes, offset: int = -1) -> None:
        """Apply the next observation of the agent, in log order.

        Args:
            observation: The observation.
            observation_id: Its id.
            offset: The offset of its record. Only checkpoints need it.
        """
        patch = observation.patch
        self.last = offset, observation_id
        self.since_checkpoint += 1
        lease = patch.get("lease")
        if isinstance(lease, Mapping):
            self._lease(lease, patch)
        if "desired" in patch:
            self._desire(observation, observation_id)
        if observation.source.run == self.token:
            if "status" in patch:
                self.observed = _observed_state(patch)
            if "checkpoint" in patch:
                self.since_checkpoint = 0

    def _lease(self, lease: Mapping[str, Any], patch: Mapping[str, Any]) -> None:
        token, act, beat = lease["token"], lease["act"], lease["beat"]
        if act == "claimed":
            if (lease.get("after") or "", beat) == (self.token, self.beat):
                self.token, self.beat, self.is_open = token, 0, True
                self.term += 1
                self.lease_ms = patch.get("lease_ms") or 0
                self.owner = patch.get("owner") or ""
        elif token == self.token and self.is_open and beat == self.beat + 1:
            self.beat = beat
            self.is_open = act == "renewed"

    def _desire(self, observation: Observation, observation_id: bytes) -> None:
        patch = observation.patch
        order = (observation.priority, order_key(observation, observation_id))
        if order > self._desired_order:
            self._desired_order = order
            self.desired = DesiredState(
                _text(patch, "desired"), observation.priority, _text(patch, "desired_by"), _text(patch, "desired_why"),
                patch.get("desired_at") or 0,  # type: ignore[arg-type]
            )  # fmt: skip


def _nondefault_fields(state: DesiredState | ObservedState) -> dict[str, Any]:
    """Return the fields of a state that differ from the default."""
    return {name: value for name, value in state._asdict().items() if value != state._field_defaults[name]}


def _text(patch: Mapping[str, Any], name: str) -> str:
    value = patch.get(name)
    return value if isinstance(value, str) else ""


def _observed_state(patch: Mapping[str, Any]) -> ObservedState:
    return ObservedState(**{name: patch[name] for name in ObservedState._fields if name in patch})
