"""The command with which refold starts itself as a child process."""

from __future__ import annotations

import sys

# Without the current folder on the path, as the installed program runs.
REFOLD = (sys.executable, "-P", "-m", "refold.explorer.cli.main")
