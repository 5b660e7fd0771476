"""Sampling of successful runs: a share is kept as long as a success is, all others for a shorter time.

A run that is flagged, that failed, or that was a test keeps its class (agents/retention/classes.py): no failure is ever
sampled away. A hash of the run's id decides: the result is the same everywhere and at every time, and a run in a share
is in every greater share. No observation is dropped here, nor anywhere: a class says how long content is kept, and ids,
hashes, order and provenance stay.
"""

from __future__ import annotations

import hashlib
import math

from refold.agents.journal.record import Outcome
from refold.agents.retention.classes import FLAGGED, SUCCESS, UNSAMPLED
from refold.agents.retention.classes import class_of as class_by_outcome
from refold.avro.errors import InputError

_DOMAIN = b"refold-sample/1\0"
_END = 2**64


def class_of(run_id: str, outcome: Outcome, *, kind: str = "", is_flagged: bool = False, share: float = 1) -> str:
    """The class of a run that ended. kind: as it was started with. share: of successes, in [0, 1]. InputError."""
    if is_flagged:
        return FLAGGED
    found = class_by_outcome({"outcome": outcome, "kind": kind})
    return UNSAMPLED if found == SUCCESS and not is_sampled(run_id, share) else found


def is_sampled(run_id: str, share: float) -> bool:
    """Whether the run is in the share, a number in [0, 1]: none at 0, all at 1. InputError for any other share."""
    return place_of(run_id) < math.ceil(check_share(share) * _END)


def check_share(share: float) -> float:
    """Return the share. InputError if it is invalid."""
    if not 0 <= share <= 1:
        raise InputError(f"a share of {share!r}: give a number from 0 (no successful run) to 1 (all of them)")
    return share


def place_of(run_id: str) -> int:
    """Return the run's rank in [0, 2^64): the first eight bytes of a SHA-256 of its id."""
    return int.from_bytes(hashlib.sha256(_DOMAIN + run_id.encode()).digest()[:8], "big")
