"""SIGTERM and Ctrl-C end a command even if Python drops the exception, within a callback from C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

STOPPED = """
import os, signal, sys, time, weakref
from refold.explorer.cli.stopping import install

class Thing:
    pass

def dies(reference):
    os.kill(os.getpid(), int(sys.argv[1]))
    for _ in range(1000):  # the handler runs here
        pass

install()
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


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.outside
def test_signal_within_a_callback_is_not_lost(number: signal.Signals, status: int) -> None:
    command = [sys.executable, "-P", "-c", STOPPED, str(int(number))]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")
