"""Large values are encoded in a thread, so that an agent's event loop is not held up."""

from __future__ import annotations

import threading
from collections.abc import Callable

from refold.agents.recorder.context import in_thread
from refold.agents.recorder.plain import is_large


class BesideLoop:
    """Encodes the values of one run: large ones in a thread, one at a time, so that the loop has its turn."""

    def __init__(self) -> None:
        self._turn = threading.Lock()

    async def encoded(self, encode: Callable[[], bytes], value: object) -> bytes:
        """A value's JSON, as `encode` makes it."""
        if not is_large(value):
            return encode()

        def encoded_alone() -> bytes:
            with self._turn:
                return encode()

        return await in_thread(encoded_alone)
