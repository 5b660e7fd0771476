"""refold's own child processes, forked instead of started as interpreters, for tests of what these processes compute.

Half a second of CPU time is saved for each. A test of how they start, or of what they import, does without this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from subprocess import DEVNULL
from typing import IO, Any

import pytest

from refold.streams import child_process
from refold_tests.forked import Forked, fork_server

CODES = {
    "refold.agents.confined.child": "from refold.agents.confined.child import main\nmain()",
    "refold.streams.rebuild.child": "from refold.streams.rebuild.child import main\nmain()",
    "refold.streams.verify.child": "from refold.streams.verify.child import main\nmain()",
    "refold.streams.snapshots.sealing_process.child": (
        "from refold.streams.snapshots.sealing_process.child import main\nmain()"
    ),
}


def _start(
    module: str, *arguments: object, stdin: int = DEVNULL, stdout: int = DEVNULL, stderr: IO[Any] | None = None,
    pass_fds: Sequence[int] = (), **variables: str,
) -> Forked:  # fmt: skip
    """As `child_process.start`."""
    return fork_server().start(
        CODES[module], [module, *map(str, arguments)], env=child_process.environment(**variables), stdin=stdin,
        stdout=stdout, stderr=None if stderr is None else stderr.fileno(), text=False, buffering=0, pass_fds=pass_fds,
    )  # fmt: skip


@contextmanager
def forked_children() -> Iterator[None]:
    """Fork the processes that rebuild, verify, seal and replay, until the end of the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child_process, "start", _start)
        yield
