"""The processor's name, which Python asks a process for (`uname -p`) when somebody first wants to know the platform.

Python keeps the answer. SDKs want to know it. Where no process may be started later, it is asked before.
"""

from __future__ import annotations

import platform


def learn_processor() -> None:
    """Have Python know the processor's name."""
    platform.uname().processor  # noqa: B018
