"""How the demo and an agent take turns: the agent says in a line of JSON where it is, the demo says go on.

Without the demo (`cued` is False) an agent says nothing and never waits. When the demo is gone, it ends.
"""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Mapping


class Cue:
    """The agent's end: standard output and standard input."""

    def __init__(self, cued: bool) -> None:
        self._cued = cued

    def say(self, where: Mapping[str, object], **facts: object) -> None:
        """Tell the demo where the agent is."""
        if self._cued:
            print(json.dumps({**where, **facts}), flush=True)

    def wait(self) -> None:
        """Wait for the demo's word to go on."""
        if self._cued and not sys.stdin.readline():
            raise SystemExit(1)

    def sleep(self, seconds: float) -> None:
        """Sleep, but not longer than the demo lives."""
        if not self._cued:
            time.sleep(seconds)
        elif select.select([sys.stdin], [], [], seconds)[0]:
            raise SystemExit(1)
