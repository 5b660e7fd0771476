"""Permissions that restrict root too, for tests of access rights."""

from __future__ import annotations

import ctypes

_CAPABILITIES = (0, 1, 2, 3)  # chown, dac_override, dac_read_search, fowner
_PR_CAPBSET_DROP = 24


def without_override() -> None:
    """Call before a child process starts: root, whom permissions do not restrict, becomes a user whom they do."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in _CAPABILITIES:
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
