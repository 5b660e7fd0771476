"""How the demo and an agent take turns: the agent says in a line of JSON where it is, the demo answers with a line.

Without the demo (`told=False`) an agent says nothing and never waits. When the demo is gone, so is the agent.
"""

from __future__ import annotations

import json
import select
import sys
import time


class Cue:
    """The agent's end: standard output and standard input."""

    def __init__(self, told: bool) -> None:
        self._told = told

    def say(self, at: str, **facts: object) -> None:
        """Tell the demo where the agent is."""
        if self._told:
            print(json.dumps({"at": at, **facts}), flush=True)

    def wait(self) -> None:
        """Wait for the demo's word to go on."""
        if self._told and not sys.stdin.readline():
            raise SystemExit(1)

    def sleep(self, seconds: float) -> None:
        """Sleep, but not longer than the demo lives."""
        if not self._told:
            time.sleep(seconds)
        elif select.select([sys.stdin], [], [], seconds)[0]:
            raise SystemExit(1)
