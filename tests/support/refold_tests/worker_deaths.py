"""How a worker of xdist died, as the run's output says it.

1. Each worker's faulthandler writes into a file of its own, whose content is printed when the worker dies.
2. A memory fault in a thread of Kafka's client writes nothing: these threads block all signals, and the kernel ends the
   process (docs/decisions/060). refold cannot prevent it. So a worker that died by SIGSEGV without a word has its test
   run again, once, and the run's end says so.
3. Any other death fails its test.
"""

from __future__ import annotations

import faulthandler
import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

# Its pipe is closed: it has ended, or is about to.
_DEATH_S = 30.0
_FOLDER = "REFOLD_TEST_FAULTS"
_AGAIN = pytest.StashKey[list[str]]()
_FILE = pytest.StashKey[int]()


def begin(config: pytest.Config) -> None:
    """Make the folder of the files; call it before workers start."""
    folder = tempfile.mkdtemp(prefix="refold-test-faults-")
    os.environ[_FOLDER] = folder
    config.stash[_AGAIN] = []
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def begin_test(config: pytest.Config) -> None:
    """Have the faulthandler of a worker write into its file. pytest enables it for the run's output, and `refold
    worker`, where a test calls it, for standard error.
    """
    if (given := getattr(config, "workerinput", None)) is None:
        return
    if _FILE not in config.stash:
        # Open until the process ends.
        config.stash[_FILE] = os.open(Path(os.environ[_FOLDER]) / given["workerid"], os.O_WRONLY | os.O_CREAT, 0o600)
    faulthandler.enable(config.stash[_FILE])


def is_run_again(config: pytest.Config, worker: WorkerController, test: str) -> bool:
    """Print how a worker died; return whether the test that it ran is to be run again."""
    pipe: Any = worker.gateway._io
    with suppress(subprocess.TimeoutExpired):
        pipe.popen.wait(_DEATH_S)
    status = pipe.popen.returncode
    file = Path(os.environ[_FOLDER]) / worker.gateway.id
    said = file.read_text(errors="replace") if file.exists() else ""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    reporter.write_line(f"\n{worker.gateway.id} ended with status {status} in {test}\n{said}")
    again = config.stash[_AGAIN]
    if status != -signal.SIGSEGV or not file.exists() or said or test in again:
        return False
    again.append(test)
    return True


def tell(reporter: pytest.TerminalReporter) -> None:
    """Name the tests that ran again, at the run's end."""
    for test in reporter.config.stash.get(_AGAIN, []):
        reporter.section("a memory fault in a thread of Kafka's client", yellow=True)
        reporter.write_line(f"{test} ran again, because its worker died without a word (docs/decisions/060)")
