"""Permissions that restrict root too, for tests of access rights."""

from __future__ import annotations

import ctypes

_CAPABILITIES = (0, 1, 2, 3)  # chown, dac_override, dac_read_search, fowner
_PR_CAPBSET_DROP = 24
_VERSION_3 = 0x20080522

# For `before` of refold_tests.command.
WITHOUT_OVERRIDE = "from refold_tests.permissions import without_override; without_override()"


def without_override() -> None:
    """Make root, whom permissions do not restrict, a user whom they do: this thread, and what it becomes by `exec`.

    For a child process that has one thread.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in _CAPABILITIES:
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    process = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    # Effective, permitted and inheritable ones: of the first 32 capabilities, then of the others.
    held = (ctypes.c_uint32 * 6)()
    libc.capget(process, held)
    for kind in range(3):
        held[kind] &= ~sum(1 << each for each in _CAPABILITIES)
    libc.capset(process, held)
