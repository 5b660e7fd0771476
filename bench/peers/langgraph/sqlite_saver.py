"""Runs the thread of thread.py with SqliteSaver and its defaults.

python saver.py FOLDER STEPS. Prints the figures of `drive`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from langgraph.checkpoint.sqlite import SqliteSaver
from thread import drive


def main() -> None:
    with SqliteSaver.from_conn_string(str(Path(sys.argv[1]) / "checkpoints.sqlite")) as saver:
        print(json.dumps(drive(saver, int(sys.argv[2]))))


if __name__ == "__main__":
    main()
