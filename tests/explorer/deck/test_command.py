"""`refold deck` where it cannot run, and in a real terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest

from refold_tests.command import refold_command

PATIENCE_S = 120


def test_missing_terminal_is_reported(incident_url: str) -> None:
    refused = refold_command("deck", "--log", incident_url).refused()
    assert refused.startswith("the deck needs a terminal (over ssh: ssh -t)")


@pytest.mark.outside
def test_terminal_shows_the_runs_and_q_quits(incident_url: str) -> None:
    owner, terminal = pty.openpty()
    deck = subprocess.Popen(
        [sys.executable, "-P", "-m", "refold.explorer.cli.main", "deck", "--log", incident_url],
        stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"},
    )  # fmt: skip
    os.close(terminal)
    try:
        shown = read_until(owner, b"kettle", b"")
        os.write(owner, b"q")
        while deck.poll() is None:
            shown += read_some(owner)
        assert deck.returncode == 0
        assert b"\x1b[?1049l" in shown + read_some(owner), "the terminal is not given back"
    finally:
        if deck.poll() is None:
            os.kill(deck.pid, signal.SIGKILL)
            deck.wait()
        os.close(owner)


def read_until(owner: int, text: bytes, shown: bytes) -> bytes:
    """Return what was sent to a terminal, up to a text."""
    end = time.monotonic() + PATIENCE_S
    while text not in shown:
        assert time.monotonic() < end, shown[-2000:]
        shown += read_some(owner)
    return shown


def read_some(owner: int) -> bytes:
    """Return what is sent to a terminal within a moment; nothing once it is closed."""
    try:
        return os.read(owner, 65536) if select.select([owner], [], [], 0.1)[0] else b""
    except OSError:
        return b""
