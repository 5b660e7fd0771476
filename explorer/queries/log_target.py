"""The log that a question or a command is about, and how it is opened.

A log may be used by one thread only. `Handles` opens one log for each thread that answers questions, on first use.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from refold.avro.errors import InputError, StorageError
from refold.streams.defaults import OWNER_TIMEOUT_S

# Logs are imported only where one is opened: --help and --version do not need them.
if TYPE_CHECKING:
    from refold.agents.log import AgentLog
    from refold.avro.definition import TypeDefinition

TYPES_ENVIRONMENT = "REFOLD_TYPES"


@dataclass(frozen=True, slots=True)
class LogTarget:
    """The log that a command works on.

    A url of None means REFOLD_LOG, or file:.refold. Empty types mean those of REFOLD_TYPES. A worker of None means
    REFOLD_WORKER, or any worker in the group.
    """

    url: str | None = None
    types: tuple[str, ...] = ()
    owner_timeout_s: float = OWNER_TIMEOUT_S
    worker: str | None = None

    def read(self) -> AgentLog:
        """Open the log read-only. A missing log is not created."""
        return self._open(read_only=True)

    @contextmanager
    def write(self, *, make: bool = True) -> Iterator[AgentLog]:
        """Open the log for writing, and close it at the end.

        Args:
            make: Whether a missing log is created.

        Raises:
            InputError: The log does not exist, and `make` is false.
            StorageError: The work is done and durable, but the log could not be closed.
        """
        from refold.streams.open import resolved_url

        if not make and not self.exists():
            raise InputError(
                f"{resolved_url(self.url)}: there is no log here; record into it first, or give its path with --log"
            )
        with self._open() as log:
            yield log
            log.flush()
            try:
                log.close()
            except StorageError as error:
                raise StorageError(f"done, and durable, but the log could not be closed: {error}") from error

    def open_to_write(self) -> AgentLog:
        """Open the log for writing; a missing log is created. The caller closes it."""
        return self._open()

    def _open(self, *, read_only: bool = False) -> AgentLog:
        from refold.agents.log import open_log

        return open_log(
            self.url, types=self.type_paths(), read_only=read_only, owner_timeout_s=self.owner_timeout_s,
            worker=self.worker,
        )  # fmt: skip

    def exists(self) -> bool:
        """Whether the log exists."""
        from refold.streams.open import log_exists

        return log_exists(self.url, self.owner_timeout_s)

    def type_paths(self) -> list[Path]:
        """Return the type files and folders that were given, or else those of REFOLD_TYPES."""
        listed = self.types or os.environ.get(TYPES_ENVIRONMENT, "").split(os.pathsep)
        return [Path(each) for each in listed if each]

    def own_types(self) -> dict[str, TypeDefinition]:
        """Return the user's own types, by name."""
        from refold.avro.shipped import load_types
        from refold.reducers.custom import code_of

        return load_types(self.type_paths(), code_of)


class Handles:
    """Opens a log for reading, once for each thread. The logs share indexes (streams/entity_index.py)."""

    def __init__(self, target: LogTarget) -> None:
        self._target = target
        self._own = threading.local()
        self._lock = threading.Lock()
        self._opened: list[AgentLog] = []
        # Imported here: --help and --version do not need it.
        from refold.streams.entity_index import EntityIndexes

        self._indexes = EntityIndexes()

    def log(self) -> AgentLog:
        """Return this thread's log.

        Raises:
            RefoldError: The log cannot be opened. The next call tries again.
        """
        found: AgentLog | None = getattr(self._own, "log", None)
        if found is None:
            found = self._own.log = self._target.read()
            found.indexes = self._indexes
            with self._lock:
                self._opened.append(found)
        return found

    def close(self) -> None:
        """Close every log that was opened. Call it only when no thread uses its log any more."""
        with self._lock:
            while self._opened:
                self._opened.pop().close()
