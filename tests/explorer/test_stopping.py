"""SIGTERM and Ctrl-C end a command even if Python drops the exception, within a callback from C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

STOPPED = """
import os, signal, sys, time, weakref
from refold.explorer.cli.main import handle_signals

class Thing:
    pass

def dies(reference):
    os.kill(os.getpid(), int(sys.argv[1]))
    for _ in range(1000):  # the handler runs here
        pass

handle_signals()
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    thing = Thing()
    reference = weakref.ref(thing, dies)
    del thing
    time.sleep(60)
    print("went on")
except KeyboardInterrupt:
    sys.exit(130)
"""

INTERRUPTED = """
import signal, sys
from refold.explorer.cli import main

def invoke(context):
    exec("import os, signal\\nos.kill(os.getpid(), signal.SIGINT)\\nfor _ in range(1000): pass")

signal.signal(signal.SIGINT, signal.default_int_handler)
main.cli.invoke = invoke
sys.exit(main.run(["types"]))
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.outside
def test_signal_within_a_callback_is_not_lost(number: signal.Signals, status: int) -> None:
    command = [sys.executable, "-P", "-c", STOPPED, str(int(number))]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


@pytest.mark.outside
def test_interrupt_within_executed_text_exits_as_any_other(tmp_path: Path) -> None:
    """Python ends a module that is run by `-m` by SIGINT if an interrupt left executed text, even if caught."""
    (tmp_path / "interrupted.py").write_text(INTERRUPTED)
    command = [sys.executable, "-P", "-m", "interrupted"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
