"""The order of observations: Q = (observed_at, agent, run, seq, id), as bytes that sort as Q does.

Layout: observed_at i64 big-endian with its sign bit flipped, agent UTF-8, NUL, run UTF-8, NUL, seq u64 big-endian,
id 32 bytes. Names contain no control characters, so the NUL after a name sorts below every byte of a name.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

from refold.avro.observation import ID_BYTES, Observation

SIGN = 1 << 63
_U64 = struct.Struct(">Q")
FIRST = b""
"""Below every order key."""


class OrderKey(NamedTuple):
    """The parts of an order key; observed_at in microseconds."""

    observed_at: int
    agent: str
    run: str
    seq: int
    id: bytes


def order_key(observation: Observation, observation_id: bytes) -> bytes:
    """Return the order key Q of an observation."""
    agent, run, _, _, seq = observation.source
    return _U64.pack(observation.observed_at + SIGN) + _names(agent, run) + _U64.pack(seq) + observation_id


@lru_cache(maxsize=1024)  # all observations of a run have the same names
def _names(agent: str, run: str) -> bytes:
    return b"%b\0%b\0" % (agent.encode(), run.encode())


def order_key_of(observed_at: int, agent: str, run: str, seq: int, id: bytes) -> bytes:
    """Build Q from its parts.

    Args:
        observed_at: Microseconds since 1970.
        agent: The source's agent.
        run: Its run.
        seq: Its number within the run.
        id: The observation's id, 32 bytes.
    """
    return _U64.pack(observed_at + SIGN) + _names(agent, run) + _U64.pack(seq) + id


def order_bound(observed_at: int) -> bytes:
    """Return the smallest prefix of any key with this observed_at (microseconds)."""
    return _U64.pack(observed_at + SIGN)


def split_order_key(key: bytes) -> OrderKey:
    """Split an order key into its parts."""
    agent, run = key[8 : -8 - ID_BYTES].split(b"\0")[:2]
    return OrderKey(
        _U64.unpack_from(key)[0] - SIGN,
        agent.decode(),
        run.decode(),
        _U64.unpack_from(key, len(key) - 8 - ID_BYTES)[0],
        key[-ID_BYTES:],
    )


def observed_at_of(key: bytes) -> int:
    """Return the observed_at in an order key, in microseconds."""
    number: int = _U64.unpack_from(key)[0]
    return number - SIGN


def id_of(key: bytes) -> bytes:
    """Return the observation's id at the end of an order key."""
    return key[-ID_BYTES:]
