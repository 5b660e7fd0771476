"""The gate at which a paused agent waits: before a step (sdk), or before a model call is passed on (capture).

It is a folder with two files. The owner creates `hold`, and removes it. Who reaches the gate while `hold` is there
writes `held`, and waits until `hold` is gone. A file and not the log, because the gate is passed before each step: it
costs one look at a folder, and agent and owner are on one machine. What is wanted, and that the agent waits, is in the
log.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path

_HOLD, _HELD = "hold", "held"
_LOOK_S = 0.05


def gate_folder(folder: Path) -> Path:
    """Return the folder of an agent's gate.

    Args:
        folder: The agent's own folder.
    """
    return folder / "gate"


class PauseGate:
    """The gate of one agent.

    Args:
        folder: An existing folder; only its owner and its agent use it.
    """

    def __init__(self, folder: Path) -> None:
        self._hold = folder / _HOLD
        self._reached = folder / _HELD

    @property
    def is_closed(self) -> bool:
        """Whether the agent should wait."""
        return self._hold.exists()

    @property
    def is_reached(self) -> bool:
        """Whether the agent waits at the closed gate."""
        return self._reached.exists()

    def close(self) -> None:
        """Let the agent wait from its next boundary on."""
        self._reached.unlink(missing_ok=True)
        self._hold.touch()

    def open(self) -> None:
        """Let the agent continue."""
        self._hold.unlink(missing_ok=True)
        self._reached.unlink(missing_ok=True)

    def wait(self) -> None:
        """Wait at the gate while it is closed."""
        while self.is_closed:
            self._mark_reached()
            time.sleep(_LOOK_S)

    async def wait_async(self) -> None:
        """As `wait`, while the event loop continues."""
        while self.is_closed:
            self._mark_reached()
            await asyncio.sleep(_LOOK_S)

    def _mark_reached(self) -> None:
        if not self._reached.exists():
            with suppress(OSError):  # the folder is gone, and the owner with it
                self._reached.touch()
            if not self.is_closed:  # it was opened meanwhile
                self._reached.unlink(missing_ok=True)
