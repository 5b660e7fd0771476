"""Sampling of successful runs: a share is kept as long as a success is, all others for a shorter time.

A run that is flagged, that failed, or that was a test keeps its class (agents/retention/classes.py): no failure is ever
sampled away. A hash of the run's id decides. So the result is the same everywhere and at every time, and a run in a
share is also in every greater share. Observations are never dropped, here or elsewhere: a class decides how long
content is kept, and ids, hashes, order and provenance remain.
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
    """Return the class of a run that ended.

    Args:
        run_id: The run's id.
        outcome: Its outcome.
        kind: The kind that it was started with.
        is_flagged: Whether it is flagged.
        share: The share of successful runs to keep, in [0, 1].

    Raises:
        InputError: The share is invalid.
    """
    if is_flagged:
        return FLAGGED
    found = class_by_outcome({"outcome": outcome, "kind": kind})
    return UNSAMPLED if found == SUCCESS and not is_sampled(run_id, share) else found


def is_sampled(run_id: str, share: float) -> bool:
    """Return whether the run is in the share.

    Args:
        run_id: The run's id.
        share: The share, in [0, 1]: no run is in it at 0, all runs are at 1.

    Raises:
        InputError: The share is not in [0, 1].
    """
    return place_of(run_id) < math.ceil(check_share(share) * _END)


def check_share(share: float) -> float:
    """Return the share unchanged.

    Raises:
        InputError: It is not in [0, 1].
    """
    if not 0 <= share <= 1:
        raise InputError(f"a share of {share!r}: give a number from 0 (no successful run) to 1 (all of them)")
    return share


def place_of(run_id: str) -> int:
    """Return the run's rank in [0, 2^64): the first eight bytes of a SHA-256 of its id."""
    return int.from_bytes(hashlib.sha256(_DOMAIN + run_id.encode()).digest()[:8], "big")
