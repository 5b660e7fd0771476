"""A log whose process is killed after a number of appends."""

from __future__ import annotations

import itertools
import os
import signal
from typing import Any


def die_at(port: Any, count: int) -> None:
    """Send this process SIGKILL when it has appended the count-th record to a log; 0: never.

    Each record is durable alone, as in partitions of Kafka.
    """
    if not count:
        return
    append, appended = port.append, itertools.count(1)

    def dying(*given: Any) -> None:
        append(*given)
        port.flush()
        if next(appended) == count:
            os.kill(os.getpid(), signal.SIGKILL)

    port.append = dying
