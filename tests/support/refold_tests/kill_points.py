"""Moments of the worker's protocol at which a test's worker kills or stops its own process, from within its own
methods.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

from refold.streams.log.kafka.transactions import PartitionWriter
from refold.streams.worker.emission import Emitter
from refold.streams.worker.partition_table import PartitionTable

MOMENTS = ("begun", "produced", "sent", "committed", "written")
SEALING_MOMENTS = ("appended", "named", "sealed")


def die_at(moment: str, count: int, sent: signal.Signals = signal.SIGKILL) -> None:
    """Send this process a signal when it reaches the moment for the count-th time."""
    if not moment:
        return
    calls: list[None] = []

    def reached() -> None:
        calls.append(None)
        if len(calls) == count:
            # The signal goes to this thread, which then stops here. A signal to the process may reach another
            # thread first.
            signal.pthread_kill(threading.get_ident(), sent)

    def after(owner: type, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def wrapped(*args: Any, **named: Any) -> Any:
            result = original(*args, **named)
            reached()
            return result

        setattr(owner, name, wrapped)

    places = {
        "produced": (Emitter, "_produce"),
        "sent": (Emitter, "_send_offsets"),
        "committed": (Emitter, "emit"),
        "written": (PartitionTable, "write"),
        "begun": (PartitionTable, "fold"),
        "appended": (PartitionWriter, "append"),
        "named": (PartitionWriter, "put"),
        "sealed": (PartitionWriter, "commit"),
    }
    after(*places[moment])
