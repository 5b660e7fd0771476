"""What who watches a sink is told, whatever the store does."""

from __future__ import annotations

import threading
from pathlib import Path

import refold
from refold.sinks.port import Batch, Load, Sink, SinkBusy
from refold.sinks.run import SinkWatch, keep_up
from refold.streams.cut import Cut


class Full(Sink):
    """A store that knows its position, and takes nothing the first `refusals` times."""

    name = "a full store"

    def __init__(self, refusals: int) -> None:
        self._refusals = refusals
        self._position: Cut | None = None

    def position(self) -> Cut | None:
        return self._position

    def load(self, load: Load) -> None:
        self._take(load.cut)

    def write(self, batch: Batch) -> None:
        self._take(batch.cut)

    def close(self) -> None:
        """Nothing is open."""

    def _take(self, cut: Cut) -> None:
        if self._refusals:
            self._refusals -= 1
            raise SinkBusy("full", retry_after_s=0.0)
        self._position = cut


def test_store_that_accepts_nothing_has_not_recovered(tmp_path: Path) -> None:
    told: list[str] = []
    watch = SinkWatch(
        wrote=lambda taken: told.append("wrote"), caught_up=lambda: told.append("answered"),
        refused=lambda error, retry_after_s: told.append("refused"),
    )  # fmt: skip
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        log.observe("tool_config/a", {"rate_limit": 1})
        keep_up(log.port, Full(3), follow=False, stop=threading.Event(), watch=watch)
    assert told == ["refused", "refused", "refused", "wrote", "answered"]
