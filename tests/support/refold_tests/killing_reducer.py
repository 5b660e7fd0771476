"""Custom reducers that stop or kill their own process, except the process whose id is in MORTAL_SPARES.

MORTAL_CALLS: at which call. MORTAL_HOLD: a folder; the process writes a file named after its id there and waits.
Without it the process kills itself.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from refold_tests.sample_types import defined, document

SPARES, CALLS, HOLD = "MORTAL_SPARES", "MORTAL_CALLS", "MORTAL_HOLD"

_calls: list[None] = []


def mortal(value: str | None, assertion: Any) -> str:
    """The last three letters of what was said."""
    if os.environ.get(SPARES, str(os.getpid())) != str(os.getpid()):
        _calls.append(None)
        if len(_calls) == int(os.environ[CALLS]):
            _stop()
    return f"{value or ''}{assertion.value}"[-3:]


def _stop() -> None:
    if HOLD in os.environ:
        (Path(os.environ[HOLD]) / str(os.getpid())).touch()
        signal.pause()
    os.kill(os.getpid(), signal.SIGKILL)


_FIELD = {"type": "string", "refold.reducer": "custom", "refold.function": f"{__name__}:mortal"}
MORTAL = defined(document(start=_FIELD))
