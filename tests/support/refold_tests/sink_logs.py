"""A log that sinks follow, on either backend: written here, read by as many readers as a test wants."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

from refold.avro.definition import TypeDefinition
from refold.avro.observation import Observation
from refold.streams.log.port import LogPort
from refold.streams.open import open_port
from refold_tests.folding import Running, await_folded, opened, running
from refold_tests.log_handles import put
from refold_tests.sample_types import THING


class SinkLog(ABC):
    """The log at `url`; closed at its end."""

    url: str
    log: LogPort

    def write(self, observations: Iterable[Observation], definition: TypeDefinition = THING) -> None:
        """Have them in the log, durable and folded on return."""
        put(self.log, observations, definition)
        self.log.flush()
        self.await_folded()

    def register(self, definition: TypeDefinition) -> None:
        """Make a definition part of the log."""
        self.log.register(definition)

    @contextlib.contextmanager
    def reader(self) -> Iterator[LogPort]:
        """The log as a sink's process has it."""
        with contextlib.closing(open_port(self.url, read_only=True)) as log:
            yield log

    @abstractmethod
    def await_folded(self) -> None:
        """Return when changes are made of everything in the log."""


class FileSinkLog(SinkLog):
    """An embedded log, owned by this process."""

    def __init__(self, folder: Path, ending: ExitStack, partitions: int = 4) -> None:
        self.url = f"file:{folder / 'log'}?partitions={partitions}"
        self.log = ending.enter_context(contextlib.closing(open_port(self.url)))

    def await_folded(self) -> None:
        return


class KafkaSinkLog(SinkLog):
    """A log on Kafka, with a worker in this process."""

    def __init__(self, bootstrap: str, prefix: str, folder: Path, ending: ExitStack, partitions: int = 2) -> None:
        self.url = f"kafka://{bootstrap}/{prefix}?partitions={partitions}"
        self.log = self._log = ending.enter_context(opened(self.url))
        self._worker: Running = ending.enter_context(running(self.url, folder / "tables"))

    def await_folded(self) -> None:
        await_folded(self._log, self._worker)
