"""The logs that sinks follow in tests, on both backends. Each has its own name for fixtures."""

from __future__ import annotations

import contextlib
from contextlib import ExitStack
from pathlib import Path

from refold.streams.log.port import LogPort
from refold.streams.open import open_port
from refold.testing.sinks import FollowedLog
from refold_tests.folding import Running, await_folded, opened, running
from refold_tests.sample_types import OTHER, THING


class SinkLog(FollowedLog):
    """The log at `url`; it is closed at the end."""

    def __init__(self, url: str, log: LogPort) -> None:
        super().__init__(url, log, (THING, OTHER))


class FileSinkLog(SinkLog):
    """An embedded log, owned by this process."""

    def __init__(self, folder: Path, ending: ExitStack, partitions: int = 4) -> None:
        url = f"file:{folder / 'log'}?partitions={partitions}"
        super().__init__(url, ending.enter_context(contextlib.closing(open_port(url))))


class KafkaSinkLog(SinkLog):
    """A log on Kafka, with a worker in this process."""

    def __init__(self, bootstrap: str, prefix: str, folder: Path, ending: ExitStack, partitions: int = 2) -> None:
        url = f"kafka://{bootstrap}/{prefix}?partitions={partitions}"
        self._log = ending.enter_context(opened(url))
        super().__init__(url, self._log)
        self._worker: Running = ending.enter_context(running(url, folder / "tables"))

    def await_folded(self) -> None:
        await_folded(self._log, self._worker)
